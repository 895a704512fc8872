import asyncio

import pytest

from agrpo.rollout.slots import Slots


async def turn() -> None:
    """Let every ready task run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_slots_bound_holders_and_come_back_after_failures_and_cancellation() -> None:
    async def scene() -> None:
        slots, release, order = Slots(2), asyncio.Event(), list[int]()

        async def hold(name: int) -> None:
            async with slots:
                order.append(name)
                await release.wait()
                if name == 0:
                    raise ValueError("a rollout failed")

        tasks = [asyncio.create_task(hold(name)) for name in range(5)]
        await turn()
        assert order == [0, 1] and slots.num_used == 2
        tasks[2].cancel()
        tasks[1].cancel()
        await turn()
        assert order == [0, 1, 3] and slots.num_used == 2
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results[:3]] == [ValueError, asyncio.CancelledError, asyncio.CancelledError]
        assert order == [0, 1, 3, 4] and slots.num_used == 0

    asyncio.run(scene())


@pytest.mark.parametrize("first", [True, False])
def test_a_slot_granted_to_a_cancelled_waiter_is_not_lost(first: bool) -> None:
    async def scene() -> None:
        slots = Slots(0)

        async def hold() -> None:
            async with slots:
                pass

        waiting = asyncio.create_task(hold())
        await turn()
        if first:
            waiting.cancel()
        slots.limit = 1
        waiting.cancel()
        await turn()
        assert slots.num_used == 0
        await hold()

    asyncio.run(scene())


def test_a_lower_limit_only_delays_new_holders() -> None:
    async def scene() -> None:
        slots = Slots(3)
        for _ in range(3):
            await slots.__aenter__()
        slots.limit = 1
        assert slots.num_used == 3
        late = asyncio.create_task(slots.__aenter__())
        for _ in range(2):
            await slots.__aexit__(None, None, None)
        await turn()
        assert not late.done()
        await slots.__aexit__(None, None, None)
        await turn()
        assert late.done() and slots.num_used == 1

    asyncio.run(scene())
