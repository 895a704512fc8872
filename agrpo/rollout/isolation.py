"""Functions in processes of their own, which are ended when a call hangs and replaced when they die.

A reward function or tool asks for it with the attribute `isolation = "process"` (the decorator `agrpo.isolated`): it
uses signals, leaks, or may hang where no thread can be interrupted.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from agrpo.rollout.child import PIPE_S, START_LIMIT_S, Child, ChildBug, Served
from agrpo.rollout.threads import CallOverran, call_in_thread

Functions = Mapping[str, Callable[..., Any]]


def wants_process(function: object) -> bool:
    """Whether a function or class, or what a partial wraps, is marked `isolation = "process"`."""
    if isinstance(function, functools.partial):
        return wants_process(function.func)
    return hasattr(function, "isolation") and function.isolation == "process"


class IsolatedFunctions:
    """A few processes that run the marked functions, each call in whichever is free; started when none is."""

    def __init__(self, functions: Functions, num_processes: int) -> None:
        self._make = functools.partial(Served, dict(functions))
        self._started: set[Child] = set()
        # None stands for a process that is yet to be started; those that run are taken first.
        self._free: asyncio.LifoQueue[Child | None] = asyncio.LifoQueue()
        for _ in range(num_processes):
            self._free.put_nowait(None)

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """The function's return value, waiting for a free process first; the limit is that of the call alone.

        Raises CallOverran, ChildDied, its own exception as ChildBug, or Outage.
        """
        child = await self._free.get()
        try:
            if child is None:
                child = await call_in_thread(self._start, START_LIMIT_S + timeout_s)
            value = await call_in_thread(lambda: child.call(name, arguments, timeout_s), timeout_s + PIPE_S)
        except ChildBug:
            self._free.put_nowait(child)
            raise
        except BaseException:
            # After a time-out, a death or a cancelled wait the process is in the middle of something: end it.
            self._free.put_nowait(None)
            if child is not None:
                self._started.discard(child)
                with contextlib.suppress(CallOverran):
                    await asyncio.shield(call_in_thread(child.kill, 2 * PIPE_S))
            raise
        self._free.put_nowait(child)
        return value

    def close(self) -> None:
        """End all processes."""
        while self._started:
            self._started.pop().kill()

    def _start(self) -> Child:
        child = Child.start(self._make)
        self._started.add(child)
        return child
