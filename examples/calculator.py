"""A calculator as a tool: the model may look a product up instead of working it out."""

import random
import re
from typing import Any

CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 20, "b": 30}}</tool_call>'


def prompts() -> list[dict[str, Any]]:
    """256 products of two-digit numbers, each after a worked example for a small model."""
    chance = random.Random(0)
    return [_question(chance.randint(11, 99), chance.randint(11, 99)) for _ in range(256)]


def _question(a: int, b: int) -> dict[str, Any]:
    shown = [{"role": "user", "content": "Multiply 20 by 30."}, {"role": "assistant", "content": CALL}]
    return {"prompt": [*shown, {"role": "user", "content": f"Multiply {a} by {b}."}], "product": a * b}


def multiply(a: int, b: int) -> int:
    """Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        Their product.
    """
    return a * b


def right_product(completions: list[list[dict[str, Any]]], product: list[int], **_: Any) -> list[float]:
    """1 when the last reply names the product, 0.5 when only the calculator did, 0.2 for having asked it."""
    return [_score(completion, str(right)) for completion, right in zip(completions, product, strict=True)]


def _score(completion: list[dict[str, Any]], product: str) -> float:
    answers = [message["content"] for message in completion if message["role"] == "tool"]
    if completion[-1]["role"] == "assistant" and product in re.findall(r"\d+", completion[-1]["content"]):
        return 1.0
    return 0.5 if product in answers else 0.2 * bool(answers)
