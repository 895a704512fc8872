"""When an evaluation is due while training goes on."""

from pathlib import Path

import pytest

from agrpo.evaluation.due import due_step, name_in_training
from agrpo.runfile import RunFile, parse
from agrpo.store import Attempt, Store, evaluations, policies
from tests.worlds.small_groups import start_run


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """A run without policies."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    return start_run(store)


def every(steps: int | None) -> RunFile:
    given = {"name": "small", "model": {"path": "m"}, "data": {"rows": "a:b"}, "rewards": ["a:c"]}
    return parse({**given, "evaluation": {"steps": steps}}, "test")


def done(attempt: Attempt, step: int, model: str) -> None:
    """A finished evaluation."""
    evaluations.finish(attempt.store, evaluations.begin(attempt.store, "small", step, model, "t"), {})


def test_one_is_due_for_each_multiple_that_was_passed(attempt: Attempt) -> None:
    due = []
    for step in range(8):
        policies.publish(attempt, step, step, "digest")
        found = due_step(attempt.store, every(3))
        if found is not None:
            due.append(found)
            done(attempt, found, name_in_training("small", found))
    assert due == [3, 6]


def test_a_slow_evaluation_skips_to_the_newest_step(attempt: Attempt) -> None:
    for step in range(8):
        policies.publish(attempt, step, step, "digest")
    assert due_step(attempt.store, every(3)) == 7


def test_what_a_person_evaluates_beside_training_takes_no_turn_away(attempt: Attempt) -> None:
    for step in range(4):
        policies.publish(attempt, step, step, "digest")
    done(attempt, 3, "runs/small/checkpoint-3")
    assert due_step(attempt.store, every(3)) == 3


def test_none_is_due_without_a_wish_or_before_the_first_policy(attempt: Attempt) -> None:
    assert due_step(attempt.store, every(3)) is None
    policies.publish(attempt, 0, 0, "digest")
    assert due_step(attempt.store, every(None)) is None
