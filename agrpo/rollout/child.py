"""A process of its own that answers calls, and can be ended in the middle of one."""

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

from agrpo.errors import AgrpoError, BadInput, Outage
from agrpo.launch.supervisor import kill_family, kill_group, read_stat
from agrpo.rollout.outages import is_outage
from agrpo.rollout.threads import CallOverran

START_LIMIT_S = 120.0
PIPE_S = 5.0
"""What passing a call and its answer on may take beyond the call itself, and a killed process to end."""
LEAVE_S = 10.0
"""How long giving back what code holds may take."""


def nothing() -> None:
    """Leave nothing."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a process runs."""

    functions: Mapping[str, Callable[..., Any]]
    info: Any = None
    """What it tells of itself when it is ready."""
    leave: Callable[[], None] = nothing
    """Called before it ends, unless it has to be killed."""


class ChildBug(AgrpoError):
    """Code raised an exception in its process; the message holds its traceback."""

    def __init__(self, summary: str, trace: str) -> None:
        super().__init__(f"{summary}\n{trace}")
        self.summary = summary
        """The exception in one line."""


class ChildDied(ConnectionError):
    """A process ended in the middle of a call, or was killed while it started."""


class Child:
    """A spawned process that runs one call at a time."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        from agrpo.launch.child import open_supervisor  # not in what we start: it would load the store, too

        self.info: Any = None
        """What it told of itself."""
        self._process = process
        # Only another process ends code that holds the GIL when we have been killed.
        self._guard = open_supervisor(["--guard", str(process.pid), "--grace", str(LEAVE_S), "--kill-after", "0"])
        assert self._guard.stdout is not None
        self._guard.stdout.close()
        self._pipe = pipe
        self._is_idle = False
        stat = read_stat(process.pid)
        self._started = stat.started if stat else -1

    @classmethod
    def start(cls, make: Callable[[], Served], limit_s: float = START_LIMIT_S) -> Self:
        """Start a process that serves what `make` returns there; blocks until it is ready.

        Raises CallOverran after the limit, ChildDied when it is killed meanwhile, BadInput when it ends by itself, and
        what `make` raised as ChildBug or Outage.
        """
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # A daemon for us: nobody waits for it at our exit.
        process = context.Process(target=_serve, args=(make, theirs), daemon=True)
        process.start()
        theirs.close()
        child = cls(process, ours)
        try:
            child.info = child._receive(limit_s)
        except ChildDied as error:
            process.join(PIPE_S)
            child.kill()
            if (process.exitcode or 0) < 0:
                raise ChildDied(f"a process for {make!r:.200} was killed while it started: {error}") from None
            raise BadInput(
                f"a process for {make!r:.200} did not start ({error}); it must be importable in a fresh process"
            ) from None
        except BaseException:
            child.kill()
            raise
        return child

    def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Run a function there and wait for its value.

        Raises CallOverran, ChildDied, its exception as ChildBug, or Outage.
        """
        if not self._is_idle:  # its answer would be taken for ours
            raise ChildDied("the process is in the middle of another call, or dead")
        self._is_idle = False
        try:
            self._pipe.send((name, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise ChildDied("the process died") from None
        return self._receive(timeout_s)

    def end(self) -> None:
        """Let it leave what it holds unless it is in the middle of a call, then kill it; blocks."""
        if self._is_idle:
            with contextlib.suppress(ConnectionError):
                self._pipe.send(None)
            self._process.join(LEAVE_S)
        self.kill()

    def kill(self) -> None:
        """Kill it and all that it has started; blocks."""
        kill_group(self._process.pid, self._started)
        self._process.join(PIPE_S)
        self._pipe.close()
        with self._guard:
            self._guard.kill()

    def _receive(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise CallOverran(f"no answer within {timeout_s:g} s")
        try:
            kind, *parts = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise ChildDied("the process died") from None
        self._is_idle = True
        if kind == "outage":
            raise Outage(*parts)
        if kind == "bug":
            raise ChildBug(*parts)
        return parts[0]


def _serve(make: Callable[[], Served], pipe: Connection) -> None:
    """Run in the child: answer calls until it is told to leave, or the parent's end of the pipe closes."""
    os.setpgid(0, 0)  # so that what outlives its parent in here is found, and no signal for the worker's group comes in
    multiprocessing.current_process().daemon = False  # a daemon may not start processes
    loop = asyncio.new_event_loop()
    served = Served({})

    def begin() -> Any:
        nonlocal served
        served = make()
        return served.info

    try:
        with contextlib.suppress(EOFError, ConnectionError):  # the parent has gone
            _send(pipe, _outcome(loop, begin, {}))
            while (call := pipe.recv()) is not None:
                name, arguments = call
                _send(pipe, _outcome(loop, served.functions[name], arguments))
        served.leave()
    finally:
        kill_family(os.getpid(), os.getpid())


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
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        pipe.send(("bug", f"{type(error).__name__}: {error}", traceback.format_exc()))
