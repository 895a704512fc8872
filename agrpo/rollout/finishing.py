"""A group with its rewards to what the store keeps."""

from dataclasses import replace

import numpy as np

from agrpo.advantages import has_signal, total_rewards
from agrpo.records import NO_REWARD, GroupCommit, RolloutGroup, ScoredRollout
from agrpo.rollout.hooks import advantages_of
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.members import GeneratedGroup
from agrpo.rollout.stats import Times, group_stats
from agrpo.rollout.tool_stats import environment_stats, tool_stats


def finished(
    generated: GeneratedGroup, loop: AsyncRolloutLoop, rewards: dict[str, list[float | None]] | None, times: Times
) -> GroupCommit:
    """What the store keeps of a group: its samples with advantages, or the reason why it is dropped.

    `rewards` by source are None for a group that an outage left unscored.
    """
    prompt, group = generated.prompt, generated.group
    num_rollouts = len(generated.members)
    advantages, drop_reason = np.zeros(num_rollouts), "unscored"
    if rewards is not None:
        group = replace(group, rewards=total_rewards(list(rewards.values()), num_rollouts))
        advantages = advantages_of(loop, group)
        drop_reason = "" if has_signal(_rewards(group)) else _useless(_rewards(group))
    scored = [
        _scored(generated, loop, rewards or {}, _rewards(group), advantages, member) for member in range(num_rollouts)
    ]
    return GroupCommit(
        group_id=group.group_id,
        prompt_index=prompt.prompt_index,
        row_index=prompt.row_index,
        epoch=prompt.epoch,
        model_version=group.model_version,
        prompt=group.prompts[0],
        prompt_ids=next((list(m.rollout.turns[0].prompt_ids) for m in generated.members if m.rollout.turns), []),
        rollouts=scored,
        drop_reason=drop_reason or None,
        stats={
            **group_stats(group, scored, rewards or {}, times),
            **_agent_stats(generated),
            "rollout/failed_count": float(len(generated.failures)),
        },
    )


def _useless(rewards: np.ndarray) -> str:
    return NO_REWARD if np.isnan(rewards).all() else "no_signal"


def _agent_stats(generated: GeneratedGroup) -> dict[str, float]:
    if not generated.has_tools:
        return {}
    num_calls, num_failed = sum(generated.group.tool_call_counts), sum(generated.group.tool_failure_counts)
    return {
        **tool_stats([member.tally for member in generated.members], num_calls, num_failed),
        **environment_stats([member.visit for member in generated.members]),
    }


def _rewards(group: RolloutGroup) -> np.ndarray:
    return np.full(len(group.completions), np.nan) if group.rewards is None else group.rewards


def _scored(
    generated: GeneratedGroup,
    loop: AsyncRolloutLoop,
    rewards: dict[str, list[float | None]],
    totals: np.ndarray,
    advantages: np.ndarray,
    member: int,
) -> ScoredRollout:
    group, rollout, advantage = generated.group, generated.members[member].rollout, float(advantages[member])
    return ScoredRollout(
        rollout=rollout,
        sequences=[
            replace(
                sequence,
                advantage=advantage,
                version=group.model_version,
                group_id=group.group_id,
                rollout_id=rollout.rollout_id,
            )
            for sequence in group.completions_sequences[member]
        ],
        rewards={name: values[member] for name, values in rewards.items()},
        reward=float(totals[member]),
        advantage=advantage,
        terminated=loop.is_terminated(rollout),
    )
