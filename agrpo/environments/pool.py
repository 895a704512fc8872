"""Instances of environments: made when one is needed, used again, replaced when they raise."""

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agrpo.environments.local import LocalEnvironment
from agrpo.environments.remote import RemoteEnvironment
from agrpo.errors import BadInput
from agrpo.records import Message
from agrpo.rollout.child import LEAVE_S, PIPE_S
from agrpo.rollout.isolation import wants_process
from agrpo.rollout.threads import Threads
from agrpo.tools.tally import ToolTally

Factory = Callable[[], Any]
Environment = LocalEnvironment | RemoteEnvironment

COLUMN = "environment"
"""The dataset's column that chooses among several environments."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long an environment may take, in seconds."""

    tool_s: float
    reset_s: float
    get_reward_s: float


@dataclass(slots=True)
class Visit:
    """One rollout in an environment."""

    environment: Environment
    messages: list[Message]
    """The prompt, with what reset said."""
    reset_s: float
    reward_s: float | None = None
    reward: tuple[type, float] | None = None
    """Class and reward, None where the environment does not score."""


class EnvironmentPool:
    """Lends an instance to each rollout; never more of them than `size`, the rollouts that run at the same time."""

    def __init__(
        self,
        factory: Factory | Mapping[str, Factory],
        threads: Threads,
        limits: TimeLimits,
        size: int,
        isolated: bool = False,
    ) -> None:
        self._is_routed = isinstance(factory, Mapping)
        self._factories: Mapping[str, Factory] = factory if isinstance(factory, Mapping) else {"": factory}
        self._threads = threads
        self._limits = limits
        self._size = size
        self._num_made = 0
        self._isolated = isolated
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        """Processes that start at the same time: more would slow each other down to their time limits."""
        self._free: defaultdict[str, list[Environment]] = defaultdict(list)

    @contextlib.asynccontextmanager
    async def visit(self, row: Mapping[str, Any], messages: list[Message], tally: ToolTally) -> AsyncIterator[Visit]:
        """An environment that was reset for this row, and scores itself at the end.

        Whatever is raised inside, or was raised by one of its tools, costs the instance its place.
        """
        name = self._name(row)
        environment = self._free[name].pop() if self._free[name] else await self._start(name)
        try:
            visit = await self._begin(environment, row, messages)
            yield visit
            await self._score(visit)
        except BaseException:
            await self._close(environment)
            raise
        if tally.raised & {tool.__name__ for tool in environment.tools}:
            await self._close(environment)
        else:
            self._free[name].append(environment)

    async def close(self) -> None:
        """Drop every instance that is not in use."""
        idle = [environment for environments in self._free.values() for environment in environments]
        self._free.clear()
        await asyncio.gather(*map(self._close, idle))

    def _name(self, row: Mapping[str, Any]) -> str:
        if not self._is_routed:
            return ""
        name = row.get(COLUMN)
        if name not in self._factories:
            known = ", ".join(map(repr, self._factories))
            raise BadInput(f"a row has {COLUMN}={name!r}; expected one of environment_factory's names: {known}")
        return str(name)

    async def _start(self, name: str) -> Environment:
        """A new instance, in the place of an idle one of another name when there are enough."""
        factory = self._factories[name]
        idle = next((environments for environments in self._free.values() if environments), None)
        self._num_made += 1
        try:
            if idle and self._num_made > self._size:
                await self._close(idle.pop())
            return await self._make(factory)
        except BaseException as error:
            self._num_made -= 1
            error.add_note(f"while making environment {name or factory!r}")
            raise

    async def _make(self, factory: Factory) -> Environment:
        limits, threads = self._limits, self._threads
        if not self._isolated and not wants_process(factory):
            return await self._handed_over(lambda: LocalEnvironment.start(factory, threads), limits.reset_s)
        async with self._starts:
            start = partial(RemoteEnvironment.start, factory, threads, limits.tool_s, limits.reset_s)
            return await self._handed_over(start, limits.reset_s + PIPE_S)

    async def _handed_over(self, start: Callable[[], Environment], limit_s: float) -> Environment:
        """What a thread makes; what is finished when nobody waits any more is closed."""
        finished: list[Environment] = []
        is_given_up = threading.Event()

        def close() -> None:
            with contextlib.suppress(IndexError):  # whoever takes it out closes it
                finished.pop().close()

        def run() -> None:
            finished.append(start())
            if is_given_up.is_set():
                close()

        try:
            await self._threads.call(run, limit_s)
        except BaseException:
            is_given_up.set()
            threading.Thread(target=close, daemon=True).start()
            raise
        return finished.pop()

    async def _begin(self, environment: Environment, row: Mapping[str, Any], messages: list[Message]) -> Visit:
        columns = {key: value for key, value in row.items() if not (self._is_routed and key == COLUMN)}
        begin = time.monotonic()
        try:
            said = await environment.reset(columns, self._limits.reset_s)
        except Exception as error:
            error.add_note(f"in {environment.name}.reset with {str(columns)[:1000]}")
            raise
        return Visit(environment, opening(environment.name, messages, said), time.monotonic() - begin)

    async def _score(self, visit: Visit) -> None:
        if not visit.environment.scores_itself:
            return
        begin = time.monotonic()
        try:
            reward = await visit.environment.get_reward(self._limits.get_reward_s)
        except Exception as error:
            error.add_note(f"in {visit.environment.name}.get_reward for prompt {str(visit.messages)[:500]}")
            raise
        visit.reward_s = time.monotonic() - begin
        visit.reward = None if reward is None else (visit.environment.kind, reward)

    async def _close(self, environment: Environment) -> None:
        """Leave an instance. An error in that is only shown: it must not hide why the instance is given up."""
        self._num_made -= 1
        try:
            await asyncio.shield(self._threads.call(environment.close, LEAVE_S + 2 * PIPE_S))
        except Exception as error:
            print(f"environment {environment.name} could not be left:", file=sys.stderr)
            traceback.print_exception(error)


def opening(name: str, messages: list[Message], said: Any) -> list[Message]:
    """The prompt of a rollout: the row's, with what reset said at the end of the last user message.

    Raises BadInput when there is no prompt at all, or reset returned something else than text.
    """
    if said is not None and not isinstance(said, str):
        raise BadInput(f"{name}.reset returned a {type(said).__name__}; return None, or the user's prompt as text")
    if said is None:
        if not messages:
            raise BadInput(f"{name}.reset returned None and the row has no prompt; return the user's prompt as text")
        return messages
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        return [*messages, {"role": "user", "content": said}]
    last = messages[users[-1]]
    return [*messages[: users[-1]], {**last, "content": last["content"] + said}, *messages[users[-1] + 1 :]]
