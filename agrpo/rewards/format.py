"""The shape of a completion."""

from typing import Any

from agrpo.records import Message
from agrpo.rewards.accuracy import answer_text


def think_format_reward(completions: list[list[Message]], **columns: Any) -> list[float]:
    """1.0 where the completion begins with a closed <think> block and has no other, else 0.0."""
    return [float(_thinks_once(answer_text(completion))) for completion in completions]


def _thinks_once(text: str) -> bool:
    return text.startswith("<think>") and text.count("<think>") == 1 and "</think>" in text
