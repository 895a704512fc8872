"""Reward functions in processes of their own, which can be ended when a call runs over its time limit.

A function asks for it with the attribute `isolation = "process"`: it uses signals, or may hang inside C code.
"""

import asyncio
import functools
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

from agrpo.errors import Outage, RewardError
from agrpo.rollout.outages import is_outage
from agrpo.rollout.threads import call_in_thread

Functions = Mapping[str, Callable[..., Any]]
START_LIMIT_S = 120.0


def wants_process(function: object) -> bool:
    """Whether a reward function, or what a partial wraps, is marked `isolation = "process"`."""
    if isinstance(function, functools.partial):
        return wants_process(function.func)
    return hasattr(function, "isolation") and function.isolation == "process"


@dataclass(slots=True, eq=False)
class _Child:
    process: Any
    pipe: Connection

    @classmethod
    def start(cls, functions: Functions) -> Self:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(dict(functions), theirs), daemon=True)
        process.start()
        theirs.close()
        child = cls(process, ours)
        try:
            child.receive(START_LIMIT_S)
        except (ConnectionError, TimeoutError) as error:
            child.end()
            raise RewardError(
                f"the process for reward functions {', '.join(functions)} did not start ({error}); "
                "they must be importable in a fresh process"
            ) from None
        return child

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Send one call and wait for its answer; raises TimeoutError, ConnectionError when the process died."""
        self.pipe.send((name, arguments))
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> Any:
        if not self.pipe.poll(timeout_s):
            raise TimeoutError(f"no answer within {timeout_s} s")
        try:
            return self.pipe.recv()
        except EOFError:
            raise ConnectionError("the process died") from None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class IsolatedFunctions:
    """A few processes that run the marked functions, each call in whichever is free."""

    def __init__(self, functions: Functions, num_processes: int) -> None:
        self._functions = functions
        self._started: set[_Child] = set()
        # None stands for a process that is yet to be started.
        self._free: asyncio.Queue[_Child | None] = asyncio.Queue()
        for _ in range(num_processes):
            self._free.put_nowait(None)

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """The function's return value; its own exception becomes RewardError with its traceback, or an Outage."""
        child = await self._free.get()
        try:
            if child is None:
                child = await call_in_thread(self._start, START_LIMIT_S + timeout_s)
            kind, value = await call_in_thread(lambda: child.call(name, arguments, timeout_s), timeout_s + 5.0)
        except BaseException:
            # After a time-out, a death or a cancelled wait the process is in the middle of something: end it.
            if child is not None:
                self._end(child)
            self._free.put_nowait(None)
            raise
        self._free.put_nowait(child)
        if kind == "outage":
            raise Outage(value)
        if kind == "error":
            raise RewardError(f"reward function {name!r} raised in its process:\n{value}")
        return value

    def close(self) -> None:
        """End all processes."""
        for child in list(self._started):
            self._end(child)

    def _start(self) -> _Child:
        child = _Child.start(self._functions)
        self._started.add(child)
        return child

    def _end(self, child: _Child) -> None:
        self._started.discard(child)
        child.end()


def _serve(functions: Functions, pipe: Connection) -> None:
    """Run in the child: answer calls until the parent's end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send(("ready", None))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("value", functions[name](**arguments))
        except Exception as error:
            answer = ("outage", repr(error)) if is_outage(error) else ("error", traceback.format_exc())
        pipe.send(answer)
