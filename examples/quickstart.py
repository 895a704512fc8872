"""The quickstart's task: say which of two numbers is larger, and nothing else."""

import random
import re
from typing import Any

Completions = list[list[dict[str, Any]]]
BRIEF_TOKENS = 6


def prompts() -> list[dict[str, Any]]:
    """512 questions about two-digit numbers, always the same ones."""
    chance = random.Random(0)
    return [_question(*chance.sample(range(10, 100), 2)) for _ in range(512)]


def _question(first: int, second: int) -> dict[str, Any]:
    text = f"Which number is larger, {first} or {second}? Reply with only the number."
    return {"prompt": [{"role": "user", "content": text}], "larger": str(max(first, second))}


def right_number(completions: Completions, larger: list[str], **_: Any) -> list[float]:
    """0.5 when the last number in the reply is the larger one."""
    replies = zip(completions, larger, strict=True)
    return [0.5 * (re.findall(r"\d+", _text(completion))[-1:] == [number]) for completion, number in replies]


def nothing_else(completions: Completions, larger: list[str], **_: Any) -> list[float]:
    """0.5 when the reply is exactly the larger number."""
    return [0.5 * (_text(completion) == number) for completion, number in zip(completions, larger, strict=True)]


def brief(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """0.2 when the reply is only a few tokens long."""
    return [0.2 * (len(ids) <= BRIEF_TOKENS) for ids in completion_ids]


def _text(completion: list[dict[str, Any]]) -> str:
    return str(completion[-1]["content"]).strip()
