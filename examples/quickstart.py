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
    return [_question(*pair) for pair in _pairs(seed=0, num=512)]


def held_out() -> list[dict[str, Any]]:
    """128 questions about pairs that the training does not ask about, in either order."""
    asked = {frozenset(pair) for pair in _pairs(seed=0, num=512)}
    others = [pair for pair in _pairs(seed=1, num=256) if frozenset(pair) not in asked]
    return [_question(*pair) for pair in others[:128]]


def _pairs(seed: int, num: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [chance.sample(range(10, 100), 2) for _ in range(num)]


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
