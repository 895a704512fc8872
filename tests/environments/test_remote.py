"""Environments in processes of their own: what they hold is given back, and nothing that they started stays."""

import functools
from pathlib import Path

import pytest

from agrpo.environments.pool import EnvironmentPool, TimeLimits
from agrpo.errors import BadInput
from agrpo.tools.calls import ToolCall
from agrpo.tools.tally import ToolTally
from tests.environments.test_pool import play, visit
from tests.environments.worlds import Holding
from tests.worlds.processes import is_running


@pytest.mark.parametrize(
    ("how", "call", "is_left"),
    [
        ("fork", "fail", True),
        ("session", "fail", True),
        ("raises", "fail", True),
        ("session", "hang", False),
        ("shell", "die", False),
    ],
)
def test_a_replaced_process_is_left_and_takes_what_it_started_with_it(
    how: str, call: str, is_left: bool, tmp_path: Path
) -> None:
    said = tmp_path / "said"

    async def scene(pool: EnvironmentPool) -> None:
        async with pool.visit({}, [], ToolTally()) as open_visit:
            pid = int(open_visit.messages[-1]["content"])
            assert is_running(pid)
        calls = [ToolCall(call)]
        if call == "fail":
            await visit(pool, *calls)
        else:
            with pytest.raises(ConnectionError if call == "die" else TimeoutError):
                await visit(pool, *calls)
        assert said.exists() == is_left
        assert not is_running(pid)

    play(functools.partial(Holding, how, said), scene, TimeLimits(1.0, 60.0, 5.0))


def test_what_is_idle_at_the_end_is_left(tmp_path: Path) -> None:
    said, pids = tmp_path / "said", []

    async def scene(pool: EnvironmentPool) -> None:
        made, _ = await visit(pool)
        pids.append(int(made.messages[-1]["content"]))

    play(functools.partial(Holding, "fork", said), scene)
    assert said.exists() and not any(map(is_running, pids))


class Forgetful(Holding):
    """Does not return itself."""

    def __enter__(self) -> None:  # type: ignore[override]
        super().__enter__()


def test_a_process_that_holds_no_environment_is_left(tmp_path: Path) -> None:
    said = tmp_path / "said"

    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(BadInput, match="environment NoneType has no reset method"):
            await visit(pool)

    play(functools.partial(Forgetful, "shell", said), scene)
    assert said.exists()
