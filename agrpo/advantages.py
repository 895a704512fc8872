"""Rewards to advantages inside one group."""

import numpy as np

from agrpo.errors import BadInput

EPSILON = 1e-8


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Rewards [G] minus their mean, over their population standard deviation; 0 where the reward is NaN."""
    scored = ~np.isnan(rewards)
    advantages = np.zeros(len(rewards), dtype=np.float64)
    if not has_signal(rewards):
        return advantages
    values = rewards[scored].astype(np.float64)
    advantages[scored] = (values - values.mean()) / (values.std() + EPSILON)
    return advantages


def has_signal(rewards: np.ndarray) -> bool:
    """Whether a group teaches anything: two or more scored rollouts [G] that are not all equal.

    The extremes are compared, not the standard deviation with 0: that of six times 0.7 is 1.1e-16.
    """
    values = rewards[~np.isnan(rewards)]
    return len(values) >= 2 and bool(values.max() != values.min())


def total_rewards(per_source: list[list[float | None]], num_rollouts: int) -> np.ndarray:
    """Sum over sources of each rollout's rewards, float64 [G]; NaN where every source returned None."""
    totals = np.full(num_rollouts, np.nan)
    for values in per_source:
        for i, value in enumerate(values):
            if value is not None:
                totals[i] = value if np.isnan(totals[i]) else totals[i] + value
    return totals


def check_advantages(advantages: np.ndarray, num_rollouts: int) -> np.ndarray:
    """What `compute_advantages` gave as float64 [G]; raises BadInput when it is not G finite numbers."""
    values = np.asarray(advantages, dtype=np.float64)
    if values.shape != (num_rollouts,) or not np.isfinite(values).all():
        raise BadInput(
            f"compute_advantages returned {values.tolist()}; expected {num_rollouts} finite numbers, one per rollout"
        )
    return values
