"""Rewards of a complete group: all functions at once, each call with a time limit."""

import asyncio
import copy
import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Sequence
from itertools import chain, count
from typing import Any

from agrpo.errors import RewardError
from agrpo.records import RolloutGroup
from agrpo.rollout.child import ChildBug
from agrpo.rollout.isolation import IsolatedFunctions, wants_process
from agrpo.rollout.outages import is_outage
from agrpo.rollout.retries import RETRY_DELAYS_S, outlast
from agrpo.rollout.threads import Threads

RewardFunction = Callable[..., Any]
Rewards = list[float | None]

ROLLOUT_SOURCE = "rollout"
"""Source name of `Rollout.reward`."""
MAX_PROCESSES = 4


class Unscored(Exception):
    """A reward source stayed away: the group has no reward, which is not a reward of 0."""


class Scorer:
    """Scores groups with all reward functions; any number of groups at the same time."""

    def __init__(self, functions: Sequence[RewardFunction], timeout_s: float) -> None:
        self.num_retries = 0
        self._functions = dict(zip(source_names(functions), functions, strict=True))
        self._timeout_s = timeout_s
        self._threads = Threads(
            'raise reward_timeout_s, or set isolation = "process" on the reward function so that a call can be ended'
        )
        isolated = {name: function for name, function in self._functions.items() if wants_process(function)}
        self._isolated = IsolatedFunctions(isolated, min(MAX_PROCESSES, os.cpu_count() or 1))

    @property
    def longest_call_s(self) -> float:
        """How long one call of a reward function may last, with all its retries."""
        return (len(RETRY_DELAYS_S) + 1) * (self._timeout_s + max(RETRY_DELAYS_S))

    def close(self) -> None:
        """End the processes of isolated functions."""
        self._isolated.close()

    async def score(self, group: RolloutGroup) -> dict[str, Rewards]:
        """Rewards [G] by source name. Raises Unscored after an outage that retries did not outlast.

        An exception of a function is its own and carries the input as a note; RewardError says what is no reward.
        """
        async with asyncio.TaskGroup() as tasks:
            calls = {name: tasks.create_task(self._outlast(name, group)) for name in self._functions}
        rewards = {name: call.result() for name, call in calls.items()}
        away = [name for name, values in rewards.items() if values is None]
        if away:
            raise Unscored(", ".join(away))
        scored = {name: values for name, values in rewards.items() if values is not None}
        _add_own_rewards(scored, group)
        return scored

    async def _outlast(self, name: str, group: RolloutGroup) -> Rewards | None:
        """Call one function, again where that may help; None when it stayed away."""
        try:
            values = await outlast(lambda: self._call(name, group), self._count_retry)
        except Exception as error:
            if is_outage(error):
                return None
            error.add_note(_input_note(name, group))
            raise
        return check_rewards(name, values, len(group.completions))

    def _count_retry(self) -> None:
        self.num_retries += 1

    async def _call(self, name: str, group: RolloutGroup) -> Any:
        function = self._functions[name]
        row = {**group.reward_kwargs, "prompts": group.prompts}
        answers = {"completions": group.completions, "completion_ids": group.completions_ids}
        if wants_process(function):
            try:
                return await self._isolated.call(name, {**row, **answers}, self._timeout_s)
            except ChildBug as bug:
                raise RewardError(f"reward function {name!r} raised in its process:\n{bug}") from None
        # Other functions, and rollouts of later epochs, get the row, too: what one changes is its own.
        return await self._threads.run(function, {**copy.deepcopy(row), **answers}, self._timeout_s)


def source_names(functions: Sequence[RewardFunction]) -> list[str]:
    """A name per function for metrics and errors: a later function of the same name gets a number."""
    names: list[str] = []
    for function in functions:
        names.append(_free_name(_name(function), names))
    return names


def check_rewards(name: str, values: Any, num_rollouts: int) -> Rewards:
    """The values as floats or None; raises RewardError naming the function when they are no rewards of G rollouts."""
    try:
        rewards = [None if value is None else float(value) for value in values]
    except (TypeError, ValueError):
        raise RewardError(
            f"reward function {name!r} returned {str(values)[:200]}; expected a list of {num_rollouts} floats or None"
        ) from None
    if len(rewards) != num_rollouts:
        raise RewardError(
            f"reward function {name!r} returned {len(rewards)} values for {num_rollouts} completions; "
            "return one float or None per completion"
        )
    for i, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise RewardError(
                f"reward function {name!r} returned {reward} for completion {i}; "
                "return a finite number, or None where it does not apply"
            )
    return rewards


def _add_own_rewards(rewards: dict[str, Rewards], group: RolloutGroup) -> None:
    """Add what came with the rollouts: their environments' rewards and their own."""
    num_rollouts = len(group.completions)
    own: dict[str, Rewards] = {}
    for i, scored in enumerate(group.env_rewards):
        if scored is not None:
            own.setdefault(scored[0].__name__, [None] * num_rollouts)[i] = scored[1]
    sources = list(own.items())
    if any(reward is not None for reward in group.rollout_rewards):
        sources.append((ROLLOUT_SOURCE, group.rollout_rewards))
    for name, values in sources:
        rewards[_free_name(name, rewards)] = check_rewards(name, values, num_rollouts)


def _free_name(name: str, taken: Collection[str]) -> str:
    """The name, with the first number from 2 that sets it apart where it is taken."""
    numbered = (f"{name}_{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)


def _name(function: RewardFunction) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def _input_note(name: str, group: RolloutGroup) -> str:
    return (
        f"in reward function {name!r} for row {group.row_index}: prompt {str(group.prompts[0])[:500]}, "
        f"completions {str(group.completions)[:1500]}"
    )
