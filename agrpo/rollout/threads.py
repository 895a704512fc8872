"""Calls that block, on a thread each, with a time limit that the caller keeps."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any


async def call_in_thread(function: Callable[[], Any], timeout_s: float) -> Any:
    """Run a blocking call on a daemon thread; raises TimeoutError after `timeout_s` and leaves the thread behind.

    A pool would do for calls that return; one that hangs would hold its place in the pool and the process's exit.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result((result, error))

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (function(), None)
        except BaseException as error:  # whatever it is belongs to the caller
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=run, daemon=True, name=f"call-{function!r:.60}").start()
    result, error = await asyncio.wait_for(answer, timeout_s)
    if error is not None:
        raise error
    return result
