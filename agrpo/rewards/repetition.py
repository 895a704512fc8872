"""A penalty on repeated token n-grams."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RepetitionPenalty:
    """The share of repeated n-grams times a penalty (arXiv 2502.03373, C.2)."""

    ngram_size: int
    max_penalty: float

    def __call__(self, completion_ids: list[list[int]], **columns: Any) -> list[float]:
        """One value between `max_penalty` and 0 per completion."""
        return [self.penalise(ids) for ids in completion_ids]

    def penalise(self, token_ids: list[int]) -> float:
        """0 for a completion that is shorter than one n-gram."""
        ngrams = list(zip(*(token_ids[start:] for start in range(self.ngram_size)), strict=False))
        return self.max_penalty * (1 - len(set(ngrams)) / len(ngrams)) if ngrams else 0.0


def get_repetition_penalty_reward(ngram_size: int, max_penalty: float) -> RepetitionPenalty:
    """A penalty down to `max_penalty` (0 or less) for completions that repeat their n-grams of tokens."""
    if max_penalty > 0:
        raise ValueError(f"max_penalty={max_penalty}: expected 0 or less, as repetition is punished")
    return RepetitionPenalty(ngram_size, max_penalty)
