"""Calls that block, on threads, with a time limit that the caller keeps."""

import asyncio
import contextlib
import functools
import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from agrpo.errors import BadInput

Answer = tuple[Any, BaseException | None]

MAX_HUNG = 32
"""Threads that may hang at the same time before it counts as a bug."""


class CallOverran(TimeoutError):
    """A call did not come back within its time limit."""


class TooManyHung(BadInput):
    """So many calls hang that it is no accident any more."""


class Threads:
    """Daemon threads that are used again; one whose call overruns is left behind and another takes its place.

    A pool of a fixed size would lose a place with every call that hangs, and could not end with its process.
    """

    def __init__(self, advice: str) -> None:
        self.num_hung = 0
        """Threads left behind that still hang."""
        self.num_abandoned = 0
        """Threads left behind so far."""
        self._advice = advice
        self._idle: list[_Thread] = []

    async def run(self, function: Callable[..., Any], arguments: dict[str, Any], timeout_s: float) -> Any:
        """Call a function, async or not. Raises CallOverran after `timeout_s`, TooManyHung when too many calls hang."""
        if is_async(function):
            timeout = asyncio.timeout(timeout_s)
            try:
                with own_cancellation_is_a_bug(_name(function)):
                    async with timeout:
                        return await function(**arguments)
            except SystemExit as error:
                raise _as_bug(_name(function), error) from None
            except TimeoutError as error:
                if not timeout.expired():
                    raise
                raise CallOverran(f"{_name(function)} took more than {timeout_s:g} s") from error
        return await self.call(functools.partial(function, **arguments), timeout_s)

    async def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Run a blocking call on a thread of its own; errors as in `run`."""
        thread = self._idle.pop() if self._idle else _Thread()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        thread.give(function, answer, self._came_back)
        try:
            done, _ = await asyncio.wait([answer], timeout=timeout_s)
        except asyncio.CancelledError:
            thread.end()
            raise
        if not done:
            self._abandon(thread, function, timeout_s)
        self._idle.append(thread)
        result, error = answer.result()
        if isinstance(error, SystemExit | asyncio.CancelledError):
            raise _as_bug(_name(function), error)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let the threads that wait for work end."""
        while self._idle:
            self._idle.pop().end()

    def _abandon(self, thread: "_Thread", function: Callable[[], Any], timeout_s: float) -> None:
        thread.is_hung = True
        thread.end()
        self.num_hung += 1
        self.num_abandoned += 1
        if self.num_hung >= MAX_HUNG:
            raise TooManyHung(
                f"{self.num_hung} calls hang at the same time, the last one of {_name(function)} "
                f"(limit {timeout_s:g} s): {self._advice}"
            )
        raise CallOverran(f"{_name(function)} took more than {timeout_s:g} s")

    def _came_back(self, thread: "_Thread") -> None:
        if thread.is_hung:
            self.num_hung -= 1


class _Thread:
    """A daemon thread that takes one call after the other."""

    def __init__(self) -> None:
        self.is_hung = False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="call").start()

    def give(
        self, function: Callable[[], Any], answer: "asyncio.Future[Answer]", came_back: Callable[["_Thread"], None]
    ) -> None:
        """Call it and deliver the answer to the event loop of the future."""
        loop = answer.get_loop()

        def deliver(outcome: Answer) -> None:
            came_back(self)
            if not answer.done():
                answer.set_result(outcome)

        def call() -> None:
            outcome = _outcome(function)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(deliver, outcome)

        self._calls.put(call)

    def end(self) -> None:
        """Take no more calls once this one has come back."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


async def call_in_thread(function: Callable[[], Any], timeout_s: float) -> Any:
    """Run one blocking call on a thread of its own; raises CallOverran after `timeout_s` and leaves it behind."""
    threads = Threads("")
    try:
        return await threads.call(function, timeout_s)
    finally:
        threads.close()


@contextlib.contextmanager
def own_cancellation_is_a_bug(name: str) -> Iterator[None]:
    """Tell code that raises CancelledError from a task that is cancelled: the one would end the task without a word."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _as_bug(name, error) from None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a function, a partial or an instance gives a coroutine."""
    if isinstance(function, functools.partial):
        return is_async(function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _outcome(function: Callable[[], Any]) -> Answer:
    try:
        return function(), None
    except BaseException as error:  # whatever it is belongs to the caller
        return None, error


def _as_bug(name: str, error: BaseException) -> RuntimeError:
    """Nothing that is called may end the process, or the task, that calls it; with the traceback of who tried."""
    words = f"{name} tried to exit: {error}" if isinstance(error, SystemExit) else f"{name} raised CancelledError"
    return RuntimeError(words).with_traceback(error.__traceback__)


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return str(getattr(function, "__qualname__", type(function).__name__))
