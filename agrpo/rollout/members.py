"""A complete group and its members, before scoring."""

import time
from dataclasses import dataclass, field

from agrpo.environments.pool import Visit
from agrpo.records import Message, Rollout, RolloutGroup
from agrpo.rollout.prompts import Prompt
from agrpo.sequences import build_sequences
from agrpo.tools.tally import ToolTally


@dataclass(frozen=True, slots=True)
class Member:
    """One rollout that came back."""

    messages: list[Message]
    """Its prompt, with what its environment said."""
    rollout: Rollout
    seconds: float
    """Dispatch to collection."""
    tally: ToolTally
    visit: Visit | None


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """A group with the members that came back, before scoring."""

    prompt: Prompt
    group: RolloutGroup
    members: list[Member]
    failures: list[str] = field(default_factory=list)
    """Why each of the other members failed."""
    has_tools: bool = False

    @property
    def seconds(self) -> tuple[float, ...]:
        """Dispatch to collection of each member."""
        return tuple(member.seconds for member in self.members)


def group_of(prompt: Prompt, group_id: int, version: int, members: list[Member]) -> RolloutGroup:
    """What hooks and reward functions see: one entry per member, in order."""
    rollouts = [member.rollout for member in members]
    return RolloutGroup(
        prompts=[member.messages for member in members],
        reward_kwargs={name: [value] * len(members) for name, value in prompt.columns().items()},
        completions=[rollout.completion for rollout in rollouts],
        completions_ids=[rollout.completion_ids for rollout in rollouts],
        completions_sequences=[build_sequences(rollout.turns) for rollout in rollouts],
        tool_call_counts=[rollout.tool_call_count for rollout in rollouts],
        tool_failure_counts=[rollout.tool_failure_count for rollout in rollouts],
        model_version=version,
        group_id=group_id,
        row_index=prompt.row_index,
        env_rewards=[None if member.visit is None else member.visit.reward for member in members],
        rollout_rewards=[rollout.reward for rollout in rollouts],
        queued_at=time.monotonic(),
    )


def num_sample_tokens(group: RolloutGroup) -> int:
    """Tokens of all samples of a group: what the allowance counts."""
    return sum(sequence.num_tokens for sequences in group.completions_sequences for sequence in sequences)
