"""Rewards that look at how many tokens a completion has."""

import math
from dataclasses import dataclass
from typing import Any

from agrpo.marks import isolated
from agrpo.records import Message
from agrpo.rewards.accuracy import answer_text, compare_answers


@isolated
@dataclass(frozen=True)
class CosineScaledReward:
    """Correct answers are worth more when short, wrong ones cost less when long (arXiv 2502.03373, C.1)."""

    min_value_wrong: float
    max_value_wrong: float
    min_value_correct: float
    max_value_correct: float
    max_len: int

    def __call__(
        self, completions: list[list[Message]], completion_ids: list[list[int]], solution: list[str], **columns: Any
    ) -> list[float | None]:
        """Needs the column `solution`; None where that cannot be read as mathematics."""
        correct = compare_answers([answer_text(completion) for completion in completions], solution)
        return [
            None if value is None else self.scale(bool(value), len(ids))
            for value, ids in zip(correct, completion_ids, strict=True)
        ]

    def scale(self, correct: bool, num_tokens: int) -> float:
        """The value on a half cosine from the empty completion to `max_len` tokens."""
        start, end = (
            (self.max_value_correct, self.min_value_correct)
            if correct
            else (self.min_value_wrong, self.max_value_wrong)
        )
        progress = min(num_tokens / self.max_len, 1.0)
        return end + 0.5 * (start - end) * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class SoftOverlongPunishment:
    """0 up to a length, then down to -1 over the last tokens before the limit (DAPO, arXiv 2503.14476)."""

    max_completion_len: int
    soft_punish_cache: int

    def __call__(self, completion_ids: list[list[int]], **columns: Any) -> list[float]:
        """One value between -1 and 0 per completion."""
        return [self.punish(len(ids)) for ids in completion_ids]

    def punish(self, num_tokens: int) -> float:
        """The punishment of a completion of this length."""
        free = self.max_completion_len - self.soft_punish_cache
        if num_tokens <= free:
            return 0.0
        if num_tokens > self.max_completion_len:
            return -1.0
        return (free - num_tokens) / self.soft_punish_cache


def get_cosine_scaled_reward(
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
    max_len: int = 1000,
) -> CosineScaledReward:
    """A reward for correctness by length; `max_len` in tokens should be the generation budget."""
    return CosineScaledReward(min_value_wrong, max_value_wrong, min_value_correct, max_value_correct, max_len)


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> SoftOverlongPunishment:
    """A punishment for the last `soft_punish_cache` of `max_completion_len` tokens; with 0 it begins at the limit."""
    if soft_punish_cache < 0:
        raise ValueError(f"soft_punish_cache={soft_punish_cache}: expected a number of tokens, 0 or more")
    return SoftOverlongPunishment(max_completion_len, soft_punish_cache)
