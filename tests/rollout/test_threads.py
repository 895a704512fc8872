import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agrpo.rollout import threads
from agrpo.rollout.threads import CallOverran, Threads, TooManyHung
from tests.worlds.processes import eventually


def test_threads_are_used_again_and_end_when_closed() -> None:
    before = threading.active_count()

    async def run() -> set[int]:
        pool = Threads("")
        used = {await pool.call(threading.get_ident, 5.0) for _ in range(20)}
        assert threading.active_count() == before + 1
        pool.close()
        return used

    assert len(asyncio.run(run())) == 1
    eventually(lambda: threading.active_count() == before)


def test_a_thousand_sleeping_calls_run_side_by_side() -> None:
    async def run() -> float:
        pool = Threads("")
        begin = time.monotonic()
        await asyncio.gather(*(pool.call(lambda: time.sleep(0.3), 20.0) for _ in range(200)))
        pool.close()
        return time.monotonic() - begin

    assert asyncio.run(run()) < 5.0


def test_a_thread_that_hangs_is_left_behind_counted_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 13."""
    monkeypatch.setattr(threads, "MAX_HUNG", 2)
    release = threading.Event()

    async def run() -> None:
        pool = Threads("use a process")
        with pytest.raises(CallOverran, match=r"took more than 0\.05 s"):
            await pool.call(release.wait, 0.05)
        assert (pool.num_hung, pool.num_abandoned) == (1, 1)
        assert await pool.call(lambda: 7, 5.0) == 7
        with pytest.raises(TooManyHung, match=r"2 calls hang at the same time.*: use a process"):
            await pool.call(release.wait, 0.05)
        release.set()
        while pool.num_hung:
            await asyncio.sleep(0.01)
        assert pool.num_abandoned == 2

    asyncio.run(asyncio.wait_for(run(), 10.0))


@pytest.mark.parametrize("error", [KeyError("a bug"), TimeoutError("the function's own")])
def test_errors_are_the_functions_own(error: Exception) -> None:
    def blocking() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    async def run(function: Callable[..., Any]) -> None:
        with pytest.raises(type(error)) as raised:
            await Threads("").run(function, {}, 5.0)
        assert raised.value is error

    for function in (blocking, coroutine):
        asyncio.run(run(function))


def gives_up() -> None:
    raise asyncio.CancelledError


async def gives_up_softly() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("function", [gives_up, gives_up_softly])
def test_a_function_that_raises_cancelled_error_cancels_nobody(function: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=f"{function.__name__} raised CancelledError") as raised:
        asyncio.run(Threads("").run(function, {}, 5.0))
    assert any(entry.name == function.__name__ for entry in raised.traceback)


def test_a_caller_that_is_cancelled_stays_cancelled() -> None:
    async def run() -> None:
        calling = asyncio.ensure_future(Threads("").run(asyncio.Event().wait, {}, 5.0))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling])
        assert calling.cancelled()

    asyncio.run(run())
