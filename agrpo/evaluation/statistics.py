"""Means with confidence intervals, pass@k, and the comparison of two policies on the same prompts. Nothing else."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

Scores = Sequence[Sequence[float]]
"""Rewards by prompt and sample [prompts][samples]."""

NUM_RESAMPLES = 2000
NUM_FLIPS = 5000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over prompts with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against a baseline on the prompts that both have answered."""

    num_prompts: int
    difference: Estimate
    """Candidate minus baseline, mean reward."""
    p_value: float
    """How often chance alone would give the candidate so large a lead."""

    def is_better(self, level: float) -> bool:
        """Whether the lead is significant."""
        return self.difference.value > 0 and self.p_value < level


def mean_reward(scores: Scores) -> Estimate:
    """Mean over prompts of the mean over their samples. A prompt's samples are alike, so prompts are resampled."""
    return _estimate([_mean(samples) for samples in scores])


def pass_at_k(scores: Scores, k: int, threshold: float) -> Estimate:
    """Chance that one of k samples of a prompt scores at least `threshold`; without bias for k up to the samples."""
    return _estimate([_pass_at_k(len(samples), sum(s >= threshold for s in samples), k) for samples in scores])


def compare(candidate: Scores, baseline: Scores) -> Comparison:
    """Pair the prompts; under no difference each pair could as well stand the other way round (sign flips)."""
    pairs = zip(candidate, baseline, strict=True)
    leads = [_mean(better) - _mean(worse) for better, worse in pairs]
    generator, seen = random.Random(_SEED), sum(leads)
    flipped = sum(
        sum(lead if generator.random() < 0.5 else -lead for lead in leads) >= seen - 1e-12 for _ in range(NUM_FLIPS)
    )
    return Comparison(len(leads), _estimate(leads), (flipped + 1) / (NUM_FLIPS + 1))


def _pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    if num_samples - num_passed < k:
        return 1.0
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def _estimate(values: Sequence[float]) -> Estimate:
    generator = random.Random(_SEED)
    means = sorted(_mean(generator.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    return Estimate(_mean(values), means[int(0.025 * NUM_RESAMPLES)], means[int(0.975 * NUM_RESAMPLES) - 1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
