"""Two kinds of tasks in one run: each reward function scores its own kind and says None to the other."""

import random
import re
from typing import Any

Completions = list[list[dict[str, Any]]]


def prompts() -> list[dict[str, Any]]:
    """256 sums and 256 words to repeat, in turn."""
    chance = random.Random(0)
    rows = []
    for _ in range(256):
        first, second = chance.randint(1, 9), chance.randint(1, 9)
        word = "".join(chance.choices("abcdefgh", k=4))
        rows.append(_row("sum", f"What is {first} + {second}? Reply with the number.", str(first + second)))
        rows.append(_row("echo", f"Reply with the word {word} and nothing else.", word))
    return rows


def _row(task: str, question: str, answer: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": question}], "task": task, "answer": answer}


def right_sum(completions: Completions, task: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """1 when the last number of a reply is the sum; None for other tasks."""
    replies = zip(completions, task, answer, strict=True)
    return [float(re.findall(r"\d+", _text(c))[-1:] == [a]) if t == "sum" else None for c, t, a in replies]


def right_word(completions: Completions, task: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """1 when the reply is the word, half when it holds it; None for other tasks."""
    replies = zip(completions, task, answer, strict=True)
    return [(0.5 * (a in _text(c)) + 0.5 * (a == _text(c))) if t == "echo" else None for c, t, a in replies]


def _text(completion: list[dict[str, Any]]) -> str:
    return str(completion[-1]["content"]).strip().rstrip(".")
