"""What nothing scored is no answer; a sum of rewards that happens to be 0 is."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from agrpo.evaluation.answering import answer_all, scored_answers
from agrpo.evaluation.result import values_of
from agrpo.evaluation.server import FixedServer
from agrpo.records import Message, Rollout
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.members import GeneratedGroup, Member, group_of
from agrpo.rollout.prompts import Prompt
from agrpo.runfile import parse
from agrpo.store import Store, evaluations
from agrpo.tools.tally import ToolTally
from tests.environments.worlds import Held
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.scripted_server import ScriptedServer
from tests.worlds.small_groups import start_run

QUESTION: list[Message] = [{"role": "user", "content": "2+2?"}]


def generated(num_rollouts: int) -> GeneratedGroup:
    prompt = Prompt(prompt_index=5, epoch=0, row_index=5, row={}, messages=QUESTION)
    rollouts = [
        Rollout(completion=[{"role": "assistant", "content": str(i)}], completion_ids=[i], turns=[])
        for i in range(num_rollouts)
    ]
    members = [Member(QUESTION, rollout, 0.1, ToolTally(), None) for rollout in rollouts]
    return GeneratedGroup(prompt, group_of(prompt, 5, 0, members), members)


def test_an_answer_that_no_source_scored_is_left_out_and_counted(tmp_path: Path) -> None:
    answers = scored_answers(generated(3), {"a": [None, 1.0, None], "b": [None, -1.0, 0.5]})
    assert [(answer.row_index, answer.sample, answer.reward) for answer in answers] == [(5, 1, 0.0), (5, 2, 0.5)]
    assert answers[1].rewards == {"a": None, "b": 0.5}
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    number = evaluations.begin(start_run(store).store, "small", 0, "m", "t")
    evaluations.add(store, number, answers)
    given = {"name": "small", "model": {"path": "m"}, "data": {"rows": "a:b"}, "rewards": ["a:c"]}
    found = values_of(store, parse({**given, "evaluation": {"num_samples": 3}}, "test"), number)
    assert (found["num_prompts"], found["num_samples"], found["num_unscored"]) == (1, 2, 1)
    assert found["reward"]["value"] == 0.25


class Stuck(AsyncRolloutLoop):
    """Cannot be closed."""

    async def close(self) -> None:
        raise OSError("a socket stays open")


def test_a_part_that_cannot_be_closed_keeps_no_other_open(tmp_path: Path) -> None:
    Held.held.clear()
    with ScriptedServer(max_model_len=4096) as server:
        world = RunWorld(tmp_path, server)
        number = evaluations.begin(world.store, "run", 1, "m", "t")
        spec = dataclasses.replace(world.spec(rows(1), (), Stuck), environment_factory=Held)

        async def evaluate() -> None:
            fixed = FixedServer(server.url, 5.0)
            try:
                await answer_all(spec, fixed, world.store, number)
            finally:
                await fixed.close()

        with pytest.raises(OSError, match="a socket stays open"):
            asyncio.run(evaluate())
    assert evaluations.scores(world.store, number) != {}
    assert Held.held.count("taken") == Held.held.count("given back") > 0
