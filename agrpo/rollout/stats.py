"""Measurements of one finished group, under the names of docs/metrics.md."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agrpo.advantages import has_signal
from agrpo.metrics import weight_name
from agrpo.records import RolloutGroup, ScoredRollout, TurnRecord
from agrpo.sequences import drift_tokens, num_refused_tokens


@dataclass(frozen=True, slots=True)
class Times:
    """How long a group took, in seconds."""

    rollout_s: tuple[float, ...]
    """Dispatch to collection, one per rollout."""
    score_wait_s: float
    """From complete to scoring."""
    score_s: float


def group_stats(
    group: RolloutGroup, scored: Sequence[ScoredRollout], rewards: dict[str, list[float | None]], times: Times
) -> dict[str, float]:
    """Everything that is known when a group is scored; means are over its rollouts. An unscored one has no rewards."""
    return {
        **_completion_stats(scored),
        **_reward_stats(group, rewards),
        **_turn_stats([entry.rollout.turns for entry in scored], scored),
        "rollout/duration_s": float(np.mean(times.rollout_s)),
        "rollout/score_wait_s": times.score_wait_s,
        "rollout/score_s": times.score_s,
    }


def _completion_stats(scored: Sequence[ScoredRollout]) -> dict[str, float]:
    lengths = np.array([len(entry.rollout.completion_ids) for entry in scored])
    ended = np.array([entry.terminated for entry in scored])
    stats = {
        weight_name("completions/mean_terminated_length"): float(ended.sum()),
        "completions/clipped_ratio": float(1 - ended.mean()),
        "completions/duplicate_frac": duplicate_frac([entry.rollout.turns for entry in scored]),
        **_spread("completions/{}_length", lengths),
    }
    return stats | (_spread("completions/{}_terminated_length", lengths[ended]) if ended.any() else {})


def _reward_stats(group: RolloutGroup, rewards: dict[str, list[float | None]]) -> dict[str, float]:
    if group.rewards is None:
        return {"rollout/unscored_count": 1.0}
    stats: dict[str, float] = {"frac_reward_zero_std": float(not has_signal(group.rewards))}
    for name, values in rewards.items():
        known = [value for value in values if value is not None]
        if known:
            stats[f"rewards/{name}/mean"] = float(np.mean(known))
            stats[f"rewards/{name}/group_std"] = float(np.std(known))
    totals = group.rewards[~np.isnan(group.rewards)]
    if len(totals):
        stats["reward"] = float(totals.mean())
        stats["reward_group_std"] = float(totals.std())
        if not has_signal(group.rewards):
            stats["reward_dropped"] = stats["reward"]
    return stats


def _turn_stats(rollouts: list[list[TurnRecord]], scored: Sequence[ScoredRollout]) -> dict[str, float]:
    num_turns = [len(turns) for turns in rollouts]
    drifts = [drift for turns in rollouts for drift in drift_tokens(turns)]
    stats = {
        "rollout/turns_mean": float(np.mean(num_turns)),
        "rollout/turns_max": float(max(num_turns)),
        "rollout/samples_per_rollout": float(np.mean([len(entry.sequences) for entry in scored])),
        "rollout/truncated_count": float(sum(turns[-1].finish_reason == "length" for turns in rollouts if turns)),
        "rollout/refused_tokens_count": float(sum(num_refused_tokens(turns) for turns in rollouts)),
    }
    if drifts:
        stats["rollout/fork_frac"] = float(np.mean([drift > 0 for drift in drifts]))
        stats["rollout/drift_tokens_mean"] = float(np.mean(drifts))
        stats["rollout/drift_tokens_max"] = float(max(drifts))
    return stats


def duplicate_frac(rollouts: list[list[TurnRecord]]) -> float:
    """Share of rollouts that repeat an earlier one of their group token for token, over all turns."""
    texts = [tuple(tuple(turn.output_ids) for turn in turns) for turns in rollouts]
    return 1 - len(set(texts)) / len(texts)


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    return {
        name.format("mean"): float(values.mean()),
        name.format("min"): float(values.min()),
        name.format("max"): float(values.max()),
    }
