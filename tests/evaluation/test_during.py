"""What ends an evaluation while training goes on."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from agrpo.errors import LeaseLost, RewardError
from agrpo.evaluation.answering import answer_all
from agrpo.evaluation.during import watch
from agrpo.evaluation.server import FixedServer
from agrpo.runfile import parse
from agrpo.store import evaluations, leases, policies, servers
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.scripted_server import Answer, ScriptedServer


def one_too_many(completions: list[object], **columns: object) -> list[float]:
    return [1.0] * (len(completions) + 1)


def test_what_ends_an_evaluation_leaves_it_as_itself(tmp_path: Path) -> None:
    """The launcher reads an outage, a bad reward and a bug from the error; a group of errors would be a bug."""
    with ScriptedServer(lambda prompt, params, number: Answer()) as server:
        world = RunWorld(tmp_path, server)
        number = evaluations.begin(world.store, "run", 1, "m", "t")

        async def evaluate() -> None:
            fixed = FixedServer(server.url, 5.0)
            try:
                await answer_all(world.spec(rows(2), (one_too_many,)), fixed, world.store, number)
            finally:
                await fixed.close()

        with pytest.raises(RewardError):
            asyncio.run(evaluate())


def test_an_attempt_that_was_replaced_adds_no_answers(tmp_path: Path) -> None:
    with ScriptedServer(lambda prompt, params, number: Answer()) as server:
        world = RunWorld(tmp_path, server)
        number = evaluations.begin(world.attempt, "run", 1, "m", "t")
        leases.release(world.attempt, "stopped")
        leases.acquire(world.store, "run", leases.this_process())

        async def evaluate() -> None:
            fixed = FixedServer(server.url, 5.0)
            try:
                await answer_all(world.spec(rows(2)), fixed, world.attempt, number)
            finally:
                await fixed.close()

        with pytest.raises(LeaseLost):
            asyncio.run(evaluate())
        assert evaluations.scores(world.store, number) == {}


def test_a_lost_lease_ends_it_in_the_middle_of_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "held_out", raising=False)
    (tmp_path / "held_out.py").write_text("def rows():\n    return [{'prompt': [{'role': 'user', 'content': 'x'}]}]\n")
    given = {
        "name": "run",
        "model": {"path": "m"},
        "data": {"rows": "held_out:rows"},
        "rewards": ["agrpo.rewards:think_format_reward"],
    }
    run = parse({**given, "evaluation": {"steps": 1}}, "test")
    with ScriptedServer(lambda prompt, params, number: Answer(after_s=60.0)) as server:
        world = RunWorld(tmp_path, server)
        policies.publish(world.attempt, 1, 1, "digest")
        servers.confirm_version(world.attempt, world.server_id, 1)

        async def lose_the_lease() -> None:
            watching = asyncio.ensure_future(watch(world.spec(rows(1)), run, world.attempt))
            deadline = time.monotonic() + 20
            while not server.requests and not watching.done():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            leases.release(world.attempt, "failed")
            leases.acquire(world.store, "run", leases.this_process())
            await asyncio.wait_for(watching, 20)

        with pytest.raises(LeaseLost):
            asyncio.run(lose_the_lease())
