"""The shape of a completion."""

import re
from typing import Any

from agrpo.records import Message
from agrpo.rewards.accuracy import answer_text

_THINK = re.compile(r"<think>(?:(?!<think>).)*?</think>.*", re.DOTALL)


def think_format_reward(completions: list[list[Message]], **columns: Any) -> list[float]:
    """1.0 where the completion begins with one closed <think> block, else 0.0."""
    return [float(_THINK.fullmatch(answer_text(completion)) is not None) for completion in completions]
