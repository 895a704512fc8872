"""A process of its own that answers calls, and can be ended in the middle of one."""

import asyncio
import inspect
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Self

from agrpo.errors import AgrpoError, BadInput, Outage
from agrpo.rollout.outages import is_outage
from agrpo.rollout.threads import CallOverran

START_LIMIT_S = 120.0

Served = tuple[Any, Mapping[str, Callable[..., Any]]]
"""What a process tells of itself when it is ready, and the functions it runs, by name."""


class ChildBug(AgrpoError):
    """Code raised an exception in its process; the message holds its traceback."""

    def __init__(self, summary: str, trace: str) -> None:
        super().__init__(f"{summary}\n{trace}")
        self.summary = summary
        """The exception in one line."""


class ChildDied(ConnectionError):
    """A process ended in the middle of a call."""


class Child:
    """A spawned process that runs one call at a time."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.info: Any = None
        """What it told of itself."""
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls, make: Callable[[], Served], limit_s: float = START_LIMIT_S) -> Self:
        """Start a process that serves what `make` returns there; blocks until it is ready.

        Raises BadInput when it does not start, and what `make` raised as ChildBug or Outage.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        process.start()
        theirs.close()
        child = cls(process, ours)
        try:
            child.info = child._receive(limit_s)
        except (ConnectionError, TimeoutError) as error:
            child.end()
            raise BadInput(
                f"a process for {make!r:.200} did not start ({error}); it must be importable in a fresh process"
            ) from None
        except BaseException:
            child.end()
            raise
        return child

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Run a function there and wait for its value.

        Raises CallOverran, ChildDied, its exception as ChildBug, or Outage.
        """
        try:
            self._pipe.send((name, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise ChildDied("the process died") from None
        return self._receive(timeout_s)

    def end(self) -> None:
        """Kill it, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _receive(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise CallOverran(f"no answer within {timeout_s:g} s")
        try:
            kind, *parts = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise ChildDied("the process died") from None
        if kind == "outage":
            raise Outage(*parts)
        if kind == "bug":
            raise ChildBug(*parts)
        return parts[0]


def _serve(make: Callable[[], Served], pipe: Connection) -> None:
    """Run in the child: answer calls until the parent's end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = asyncio.new_event_loop()
    functions: Mapping[str, Callable[..., Any]] = {}

    def begin() -> Any:
        nonlocal functions
        info, functions = make()
        return info

    pipe.send(_outcome(loop, begin, {}))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        _send(pipe, _outcome(loop, functions[name], arguments))


def _outcome(
    loop: asyncio.AbstractEventLoop, function: Callable[..., Any], arguments: dict[str, Any]
) -> tuple[Any, ...]:
    try:
        value = function(**arguments)
        return ("value", loop.run_until_complete(value) if inspect.iscoroutine(value) else value)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if is_outage(error):
            return ("outage", repr(error))
        return ("bug", f"{type(error).__name__}: {error}", traceback.format_exc())


def _send(pipe: Connection, outcome: tuple[Any, ...]) -> None:
    """An answer that cannot be pickled is a bug of the function that gave it."""
    try:
        pipe.send(outcome)
    except (TypeError, AttributeError, ValueError) as error:
        pipe.send(("bug", f"{type(error).__name__}: {error}", traceback.format_exc()))
