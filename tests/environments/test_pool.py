import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agrpo.environments.local import LocalEnvironment
from agrpo.environments.pool import EnvironmentPool, TimeLimits, Visit, opening
from agrpo.environments.remote import RemoteEnvironment
from agrpo.errors import BadInput
from agrpo.records import Message
from agrpo.rollout.child import ChildBug
from agrpo.rollout.threads import CallOverran, Threads
from agrpo.tools.calls import ToolCall
from agrpo.tools.tally import ToolTally
from agrpo.tools.toolbox import Toolbox
from tests.environments.worlds import Held, Increment, Isolated, Silent, Stuck

USER: Message = {"role": "user", "content": "Play."}
LIMITS = TimeLimits(5.0, 60.0, 5.0)


def play(
    factory: Any, scene: Callable[[EnvironmentPool], Awaitable[None]], limits: TimeLimits = LIMITS, **settings: Any
) -> None:
    async def run() -> None:
        pool = EnvironmentPool(factory, Threads("use a process"), limits, **{"size": 512, **settings})
        try:
            await scene(pool)
        finally:
            await pool.close()

    asyncio.run(run())


async def visit(
    pool: EnvironmentPool, *calls: ToolCall, row: dict[str, Any] | None = None, messages: list[Message] | None = None
) -> tuple[Visit, list[str]]:
    """One rollout that makes these calls."""
    tally = ToolTally()
    async with pool.visit(row or {}, messages or [], tally) as visit:
        toolbox = Toolbox(visit.environment.tools, Threads(""), 5.0, tally)
        answers = await toolbox.answer(calls)
    return visit, answers


def test_what_reset_says_ends_the_last_user_message() -> None:
    system, assistant = {"role": "system", "content": "S"}, {"role": "assistant", "content": "A"}
    assert opening("Env", [], "Go.") == [{"role": "user", "content": "Go."}]
    assert opening("Env", [system, USER], " Go.") == [system, {"role": "user", "content": "Play. Go."}]
    assert opening("Env", [USER, assistant], " Go.") == [{"role": "user", "content": "Play. Go."}, assistant]
    assert opening("Env", [system], "Go.") == [system, {"role": "user", "content": "Go."}]
    assert opening("Env", [USER], None) == [USER]
    with pytest.raises(BadInput, match=r"Env\.reset returned None and the row has no prompt"):
        opening("Env", [], None)
    with pytest.raises(BadInput, match=r"Env\.reset returned a dict"):
        opening("Env", [USER], {})


def test_a_rollout_gets_tools_prompt_and_reward_of_its_instance() -> None:
    """Fault 25."""

    async def scene(pool: EnvironmentPool) -> None:
        row = {"prompt": [USER], "target": 3, "note": "x"}
        made, answers = await visit(pool, ToolCall("increment", {"step": 3}), row=row, messages=[USER])
        assert [tool.__name__ for tool in made.environment.tools] == ["increment"]
        assert made.messages == [{"role": "user", "content": "Play.Count to 3."}]
        assert answers == ["3"] and made.reward == (Increment, 1.0)
        assert made.reset_s >= 0 and made.reward_s is not None

    play(Increment, scene)


def test_instances_are_made_when_needed_used_again_and_replaced_when_they_raise() -> None:
    Increment.num_made = 0

    async def scene(pool: EnvironmentPool) -> None:
        assert Increment.num_made == 0
        await asyncio.gather(*(visit(pool) for _ in range(3)))
        for _ in range(5):
            await visit(pool)
        assert Increment.num_made == 3
        _, answers = await visit(pool, ToolCall("increment", {"step": -1}), ToolCall("increment", {"step": 1}))
        assert answers == ["Error: ValueError: only upwards", "1"]
        with pytest.raises(KeyError):
            async with pool.visit({}, [], ToolTally()):
                raise KeyError("a bug in the loop")
        assert Increment.num_made == 3
        await asyncio.gather(*(visit(pool) for _ in range(3)))
        assert Increment.num_made == 5

    play(Increment, scene)


def test_a_slow_start_keeps_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a busy machine decides whether it is the outage that it is."""

    def start(factory: Any, threads: Threads, tool_s: float, limit_s: float) -> LocalEnvironment:
        time.sleep(1.5 * limit_s)
        return LocalEnvironment(factory(), threads)

    async def scene(pool: EnvironmentPool) -> None:
        await visit(pool)

    monkeypatch.setattr(RemoteEnvironment, "start", start)
    play(Increment, scene, TimeLimits(5.0, 1.0, 5.0), isolated=True)


def test_an_idle_instance_of_another_name_makes_room() -> None:
    Held.held.clear()

    async def scene(pool: EnvironmentPool) -> None:
        for name in ("a", "a", "b", "b", "c", "c"):
            await asyncio.gather(*(visit(pool, row={"environment": name}) for _ in range(2)))
        assert (Held.held.count("taken"), Held.held.count("given back")) == (6, 4)

    play({name: functools.partial(Held) for name in "abc"}, scene, size=2)


def test_only_so_many_processes_start_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    started, passed, fifth = [], [], threading.Barrier(5)

    def start(factory: Any, threads: Threads, *limits: float) -> LocalEnvironment:
        started.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            passed.append(fifth.wait(0.3))
        return LocalEnvironment(factory(), threads)

    async def scene(pool: EnvironmentPool) -> None:
        await asyncio.gather(*(visit(pool) for _ in range(8)))
        assert len(started) == 8 and passed == []

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(RemoteEnvironment, "start", start)
    play(Increment, scene, isolated=True)


def test_rows_choose_among_environments_and_the_column_stays_outside() -> None:
    async def scene(pool: EnvironmentPool) -> None:
        made, _ = await visit(pool, row={"environment": "count", "target": 1})
        assert made.environment.name == "Increment" and made.reward == (Increment, 0.0)
        quiet, answers = await visit(pool, ToolCall("look"), row={"environment": "quiet"}, messages=[USER])
        assert (answers, quiet.reward, quiet.messages) == (["nothing"], None, [USER])
        with pytest.raises(BadInput, match=r"environment='games'; expected one of .*: 'count', 'quiet'"):
            await visit(pool, row={"environment": "games"})

    play({"count": functools.partial(Increment), "quiet": Silent}, scene)


@pytest.mark.parametrize("where", ["reset", "get_reward", "move"])
def test_what_hangs_costs_only_its_rollout(where: str) -> None:
    """Fault 13."""

    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(CallOverran) as raised:
            tally = ToolTally()
            async with pool.visit({}, [], tally) as visit:
                await Toolbox(visit.environment.tools, Threads(""), 0.1, tally).answer([ToolCall("move")])
        assert any(where in note for note in raised.value.__notes__)

    play(functools.partial(Stuck, where), scene, TimeLimits(0.1, 0.1, 0.1))


def test_a_bug_carries_the_input_that_caused_it() -> None:
    class Broken(Increment):
        def reset(self, target: int = 2, **columns: Any) -> str:
            raise ZeroDivisionError("no")

    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(ZeroDivisionError) as raised:
            await visit(pool, row={"target": 7})
        assert raised.value.__notes__ == ["in Broken.reset with {'target': 7}"]

    play(Broken, scene)


def test_an_isolated_environment_lives_in_a_process_that_is_replaced() -> None:
    async def scene(pool: EnvironmentPool) -> None:
        first, answers = await visit(pool, ToolCall("sleep", {"seconds": 0.0}))
        again, _ = await visit(pool)
        assert first.messages == again.messages and answers == ["slept"]
        assert again.reward == (Isolated, 1.0)
        _, answers = await visit(pool, ToolCall("fail", {"why": "bad move"}), ToolCall("fail", {"how": 1}))
        assert answers[0] == "Error: ValueError: bad move" and answers[1].startswith("Error: wrong arguments")
        second, _ = await visit(pool)
        assert second.messages != first.messages
        with pytest.raises(ConnectionError, match="the process died"):
            await visit(pool, ToolCall("die"))
        with pytest.raises(CallOverran):
            tally = ToolTally()
            async with pool.visit({}, [], tally) as made:
                await Toolbox(made.environment.tools, Threads(""), 0.2, tally).answer(
                    [ToolCall("sleep", {"seconds": 9})]
                )
        third, _ = await visit(pool)
        assert third.messages not in (first.messages, second.messages)

    play(Isolated, scene)


def test_any_environment_can_be_given_processes() -> None:
    async def scene(pool: EnvironmentPool) -> None:
        made, answers = await visit(pool, ToolCall("increment", {"step": 2}), row={"target": 2})
        assert answers == ["2"] and made.reward == (Increment, 1.0)

    Increment.num_made = 0
    play(Increment, scene, isolated=True)
    assert Increment.num_made == 0


def cannot_be_made() -> None:
    raise RuntimeError("no licence")


@pytest.mark.parametrize(("isolated", "error"), [(False, RuntimeError), (True, ChildBug)])
def test_a_factory_that_raises_stops_with_its_own_error(isolated: bool, error: type[Exception]) -> None:
    async def scene(pool: EnvironmentPool) -> None:
        with pytest.raises(error, match="no licence"):
            await visit(pool)

    play(cannot_be_made, scene, isolated=isolated)
