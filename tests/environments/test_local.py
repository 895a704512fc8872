"""Environments in the worker's own process: what they hold is given back, what they get is theirs."""

import asyncio
import re
import threading
from typing import Any

import pytest

from agrpo.environments.pool import EnvironmentPool, TimeLimits
from agrpo.errors import BadInput
from agrpo.rollout.threads import CallOverran
from agrpo.tools.calls import ToolCall
from tests.environments.test_pool import play, visit
from tests.environments.worlds import Held, Increment, Isolated
from tests.worlds.processes import eventually


def test_an_instance_that_is_a_context_manager_is_left_when_it_is_given_up() -> None:
    Held.held.clear()

    async def scene(pool: EnvironmentPool) -> None:
        await visit(pool)
        await visit(pool, ToolCall("increment", {"step": -1}))
        assert Held.held == ["taken", "given back"]
        await visit(pool)

    play(Held, scene)
    assert Held.held == ["taken", "given back"] * 2


class Grumpy(Held):
    """Cannot be left, and has no rollout either when its service is away."""

    def reset(self, target: int = 2, **columns: Any) -> str:
        raise ConnectionError("away")

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        raise RuntimeError("I stay")


def test_an_instance_that_cannot_be_left_is_shown_and_hides_no_other_error(capfd: pytest.CaptureFixture[str]) -> None:
    Held.held.clear()

    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(ConnectionError, match="away"):
            await visit(pool)

    play(Grumpy, scene)
    assert Held.held == ["taken", "given back"]
    assert re.search("(?s)environment Grumpy could not be left.*I stay", capfd.readouterr().err)


def test_what_is_made_too_late_is_left() -> None:
    """Nobody waits for it any more: its rollout was cancelled or took another one."""
    Held.held.clear()
    may_be_made = threading.Event()

    def made_late() -> Held:
        may_be_made.wait()
        return Held()

    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(CallOverran):
            await visit(pool)
        may_be_made.set()
        await asyncio.to_thread(eventually, lambda: Held.held == ["taken", "given back"])

    play(made_late, scene, TimeLimits(5.0, 0.1, 5.0))


def make_isolated() -> Isolated:
    return Isolated()


def test_a_process_that_only_the_made_class_asks_for_is_not_forgotten() -> None:
    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(
            BadInput, match="made an instance of Isolated, which wants a process of its own; mark the factory"
        ):
            await visit(pool)

    play(make_isolated, scene)


class Forgetful(Held):
    """Does not return itself."""

    def __enter__(self) -> None:  # type: ignore[override]
        super().__enter__()


def test_an_instance_that_is_no_environment_is_left() -> None:
    Held.held.clear()

    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(BadInput, match="environment NoneType has no reset method"):
            await visit(pool)

    play(Forgetful, scene)
    assert Held.held == ["taken", "given back"]


def test_what_a_rollout_does_to_its_row_is_its_own() -> None:
    class Board(Increment):
        def reset(self, target: int = 2, **columns: Any) -> str:
            super().reset()
            columns["board"][0].append("x")
            return str(columns["board"])

    row = {"board": [[]]}

    async def scene(pool: EnvironmentPool) -> None:
        said = [(await visit(pool, row=row))[0].messages[0]["content"] for _ in range(2)]
        assert said == ["[['x']]"] * 2 and row == {"board": [[]]}

    play(Board, scene)
