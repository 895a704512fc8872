"""What goes wrong in a hook stops the worker and says where, and with what, it happened."""

import asyncio
import re
from typing import Any

import numpy as np
import pytest

from agrpo.records import Message, Rollout, RolloutGroup
from agrpo.rollout.loop import AsyncRolloutLoop
from tests.rollout.run_world import RunWorld, finished, rows


class BadFilter(AsyncRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return bool(row["difficulty"])


class BadAdvantages(AsyncRolloutLoop):
    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        raise ZeroDivisionError("no spread")


class BadSetup(AsyncRolloutLoop):
    async def setup(self) -> None:
        raise KeyError("no address")

    async def close(self) -> None:
        raise RuntimeError("nothing is open")


class BadClose(AsyncRolloutLoop):
    async def close(self) -> None:
        raise RuntimeError("cannot let go")


class GivesUp(AsyncRolloutLoop):
    """Waits for something of its own that is cancelled."""

    async def generate_one(self, prompt: list[Message], tools: list[Any], group_id: int = 0) -> Rollout:
        judge = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(judge.cancel)
        await judge
        raise AssertionError("the judge is cancelled")


@pytest.mark.parametrize(
    ("loop_cls", "error", "note"),
    [
        (BadFilter, KeyError, r"in filter_prompt for row 0: .*.number.: 0"),
        (BadAdvantages, ZeroDivisionError, r"in compute_advantages for row \d: rewards \["),
        (BadSetup, KeyError, "(?s)then close raised:.*nothing is open"),
        (GivesUp, RuntimeError, "in generate_one for row 0"),
    ],
)
def test_an_error_of_a_hook_stops_the_worker_with_its_input(
    world: RunWorld, loop_cls: type[AsyncRolloutLoop], error: type[Exception], note: str
) -> None:
    with pytest.raises(error) as raised:
        world.run(world.spec(rows(2), loop_cls=loop_cls), lambda: False)
    assert re.search(note, "\n".join(raised.value.__notes__))


def test_a_hook_that_raises_cancelled_error_is_shown_where_it_did(world: RunWorld) -> None:
    """An unnoticed end of its task would hold its group for ever."""
    with pytest.raises(RuntimeError, match="generate_one raised CancelledError") as raised:
        world.run(world.spec(rows(1), loop_cls=GivesUp), lambda: False)
    assert any(entry.name == "generate_one" for entry in raised.traceback)


def test_an_error_of_close_is_told_when_nothing_else_went_wrong(world: RunWorld) -> None:
    with pytest.raises(RuntimeError, match="cannot let go"):
        world.run(world.spec(rows(1), loop_cls=BadClose), lambda: finished(world, 1))


def test_what_was_never_set_up_is_not_closed(world: RunWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(ledger: object) -> None:
        raise ConnectionError("the store is away")

    monkeypatch.setattr("agrpo.rollout.ledger.Ledger.view", unreachable)
    with pytest.raises(ConnectionError) as raised:
        world.run(world.spec(rows(1), loop_cls=BadClose), lambda: False)
    assert not hasattr(raised.value, "__notes__")
