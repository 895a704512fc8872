"""One prompt to G rollouts, and G rollouts with their rewards to what the store keeps."""

import asyncio
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from agrpo.advantages import check_advantages, has_signal, total_rewards
from agrpo.errors import BadInput, MalformedAnswer, PromptTooLong, RequestRefused, ServerOutage
from agrpo.records import GroupCommit, Rollout, RolloutGroup, ScoredRollout
from agrpo.rollout.loop import AsyncRolloutLoop, RolloutPlace, rollout_place
from agrpo.rollout.outages import is_outage
from agrpo.rollout.prompts import Prompt
from agrpo.rollout.slots import Slots
from agrpo.rollout.stats import Times, group_stats
from agrpo.sequences import build_sequences

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0)
REFUSAL_WINDOW_S = 1.0
"""How long the first rollout of a group goes ahead of the others: a refused prompt is refused within it."""


class GroupFailed(Exception):
    """A group that gives no rollouts, for the reason kept in the store; the message is the server's or hook's."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """A complete group before scoring."""

    prompt: Prompt
    group: RolloutGroup
    rollouts: list[Rollout]
    rollout_s: tuple[float, ...]
    """Dispatch to collection of each rollout, in seconds."""


class GroupGenerator:
    """Generates groups, each rollout in a slot of its own."""

    def __init__(self, loop: AsyncRolloutLoop, run_id: str, slots: Slots) -> None:
        self.num_retries = 0
        self.num_open = 0
        """Rollouts of started groups that have not come back, with or without a slot."""
        self._loop = loop
        self._run_id = run_id
        self._slots = slots

    async def generate(self, prompt: Prompt, group_id: int, version: Callable[[], int]) -> GeneratedGroup:
        """All rollouts of a prompt; `version` is asked when the first one starts. Raises GroupFailed."""
        num_generations = self._loop.config.num_generations
        versions: list[int] = []
        tasks: list[asyncio.Task[tuple[Rollout, float]]] = []
        self.num_open += num_generations
        try:
            async with asyncio.TaskGroup() as members:
                for member in range(num_generations):
                    rollout = self._rollout(prompt, group_id, member, lambda: versions.append(version()))
                    tasks.append(members.create_task(rollout))
                    tasks[-1].add_done_callback(self._close_one)
                    if member == 0:
                        await asyncio.wait(tasks, timeout=REFUSAL_WINDOW_S)
        except BaseExceptionGroup as errors:
            raise _failure(errors) from errors
        finally:
            self.num_open -= num_generations - len(tasks)
        rollouts, seconds = zip(*(task.result() for task in tasks), strict=True)
        return _generated(prompt, group_id, versions[0], list(rollouts), seconds)

    def _close_one(self, task: asyncio.Task[tuple[Rollout, float]]) -> None:
        self.num_open -= 1

    async def _rollout(
        self, prompt: Prompt, group_id: int, member: int, started: Callable[[], None]
    ) -> tuple[Rollout, float]:
        async with self._slots:
            started()
            begin = time.monotonic()
            rollout = await self._outlast(prompt, group_id, member)
            return rollout, time.monotonic() - begin

    async def _outlast(self, prompt: Prompt, group_id: int, member: int) -> Rollout:
        """One rollout, generated again from its start after an outage or a malformed answer."""
        num_malformed = 0
        for delay in (*RETRY_DELAYS_S, None):
            rollout_place.set(RolloutPlace(self._run_id, prompt.prompt_index, member))
            try:
                return _checked(await self._loop.generate_one(copy.deepcopy(prompt.messages), [], group_id))
            except Exception as error:
                num_malformed += isinstance(error, MalformedAnswer)
                retry = num_malformed == 1 if isinstance(error, MalformedAnswer) else _is_passing(error)
                if not retry or delay is None:
                    error.add_note(f"in generate_one for row {prompt.row_index}: prompt {str(prompt.messages)[:500]}")
                    raise
            self.num_retries += 1
            await asyncio.sleep(delay)
        raise AssertionError("the last try returns or raises")


def finished(
    generated: GeneratedGroup, loop: AsyncRolloutLoop, rewards: dict[str, list[float | None]] | None, times: Times
) -> GroupCommit:
    """What the store keeps of a group: its samples with advantages, or the reason why it is dropped.

    `rewards` by source are None for a group that an outage left unscored.
    """
    prompt, group = generated.prompt, generated.group
    num_rollouts = len(generated.rollouts)
    advantages, drop_reason = np.zeros(num_rollouts), "unscored"
    if rewards is not None:
        group = replace(group, rewards=total_rewards(list(rewards.values()), num_rollouts))
        advantages = check_advantages(loop.compute_advantages(group), num_rollouts)
        drop_reason = "" if has_signal(_rewards(group)) else "no_signal"
    scored = [
        _scored(generated, loop, rewards or {}, _rewards(group), advantages, member) for member in range(num_rollouts)
    ]
    return GroupCommit(
        group_id=group.group_id,
        prompt_index=prompt.prompt_index,
        row_index=prompt.row_index,
        epoch=prompt.epoch,
        model_version=group.model_version,
        prompt=prompt.messages,
        prompt_ids=next((list(r.turns[0].prompt_ids) for r in generated.rollouts if r.turns), []),
        rollouts=scored,
        drop_reason=drop_reason or None,
        stats=group_stats(group, scored, rewards or {}, times),
    )


def num_sample_tokens(group: RolloutGroup) -> int:
    """Tokens of all samples of a group: what the allowance counts."""
    return sum(sequence.num_tokens for sequences in group.completions_sequences for sequence in sequences)


def root_error(errors: BaseException) -> BaseException:
    """The one error inside nested exception groups that says most: a bug before an outage, a failure before both."""
    if not isinstance(errors, BaseExceptionGroup):
        return errors
    leaves = [root_error(error) for error in errors.exceptions]
    return min(leaves, key=lambda leaf: (isinstance(leaf, GroupFailed), is_outage(leaf)))


def _failure(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a failed rollout means for its group: GroupFailed, or the error itself where it is a bug."""
    error = root_error(errors)
    match error:
        case PromptTooLong():
            return GroupFailed("too_long", str(error))
        case RequestRefused() | MalformedAnswer():
            return GroupFailed("failed", str(error))
        case _ if _is_passing(error):
            return GroupFailed("outage", repr(error))
    return error


def _is_passing(error: BaseException) -> bool:
    """An outage of something other than the vLLM servers, whose own retries are over when they say so."""
    return is_outage(error) and not isinstance(error, ServerOutage)


def _checked(rollout: object) -> Rollout:
    if not isinstance(rollout, Rollout):
        raise BadInput(f"generate_one returned a {type(rollout).__name__}; return an agrpo.Rollout")
    return rollout


def _generated(
    prompt: Prompt, group_id: int, version: int, rollouts: list[Rollout], seconds: tuple[float, ...]
) -> GeneratedGroup:
    num_rollouts = len(rollouts)
    group = RolloutGroup(
        prompts=[prompt.messages] * num_rollouts,
        reward_kwargs={name: [value] * num_rollouts for name, value in prompt.columns().items()},
        completions=[rollout.completion for rollout in rollouts],
        completions_ids=[rollout.completion_ids for rollout in rollouts],
        completions_sequences=[build_sequences(rollout.turns) for rollout in rollouts],
        tool_call_counts=[rollout.tool_call_count for rollout in rollouts],
        tool_failure_counts=[rollout.tool_failure_count for rollout in rollouts],
        model_version=version,
        group_id=group_id,
        row_index=prompt.row_index,
        env_rewards=[None] * num_rollouts,
        rollout_rewards=[rollout.reward for rollout in rollouts],
        queued_at=time.monotonic(),
    )
    return GeneratedGroup(prompt, group, rollouts, seconds)


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
    group, rollout, advantage = generated.group, generated.rollouts[member], float(advantages[member])
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
