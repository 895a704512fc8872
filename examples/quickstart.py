"""The quickstart's task: say which of two numbers is larger, and nothing else."""

import random
import re
from typing import Any

Completions = list[list[dict[str, Any]]]
BRIEF_TOKENS = 3
"""A number of two digits and the end of the turn."""
LONGEST = 16


def prompts() -> list[dict[str, Any]]:
    """512 questions about two-digit numbers, always the same ones."""
    chance = random.Random(0)
    return [_question(*chance.sample(range(10, 100), 2)) for _ in range(512)]


def _question(first: int, second: int) -> dict[str, Any]:
    text = f"Which number is larger, {first} or {second}? Reply with only the number."
    return {"prompt": [{"role": "user", "content": text}], "larger": str(max(first, second))}


def right_and_brief(
    completions: Completions, completion_ids: list[list[int]], larger: list[str], **_: Any
) -> list[float]:
    """Nothing unless the first number of the reply is the larger one; then from 0.1 to 1 the shorter the reply is."""
    replies = zip(completions, completion_ids, larger, strict=True)
    return [_right(_text(completion), number) * _briefness(len(ids)) for completion, ids, number in replies]


def _right(reply: str, number: str) -> bool:
    return re.findall(r"\d+", reply)[:1] == [number]


def _briefness(num_tokens: int) -> float:
    over = max(0, num_tokens - BRIEF_TOKENS)
    return max(0.1, 1.0 - 0.9 * over / (LONGEST - BRIEF_TOKENS))


def _text(completion: list[dict[str, Any]]) -> str:
    return str(completion[-1]["content"]).strip()
