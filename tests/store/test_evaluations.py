"""Evaluations and decisions come back as they went in, on both databases."""

from agrpo.store import Attempt, evaluations, runs
from agrpo.store.evaluations import Promotion, ScoredAnswer


def answer(row_index: int, sample: int, reward: float) -> ScoredAnswer:
    return ScoredAnswer(row_index, sample, [{"role": "assistant", "content": "4"}], {"exact": reward}, reward)


def test_only_a_finished_evaluation_counts(attempt: Attempt) -> None:
    store = attempt.store
    number = evaluations.begin(store, attempt.run_id, 3, "checkpoint-3", "tasks")
    evaluations.add(store, number, [answer(0, 0, 1.0), answer(0, 1, 0.0)])
    evaluations.add(store, number, [answer(1, 0, 0.5), answer(1, 1, 0.5)])
    assert evaluations.finished(store, "checkpoint-3", "tasks") is None
    evaluations.finish(store, number, {"reward": {"value": 0.5, "low": 0.0, "high": 1.0}})
    found = evaluations.finished(store, "checkpoint-3", "tasks")
    assert found is not None
    assert (found.id, found.step, found.values) == (number, 3, {"reward": {"value": 0.5, "low": 0.0, "high": 1.0}})
    assert evaluations.finished(store, "checkpoint-3", "other tasks") is None
    assert evaluations.scores(store, number) == {0: [1.0, 0.0], 1: [0.5, 0.5]}
    assert evaluations.of_run(store, attempt.run_id) == [found]


def decision(run_id: str, promoted: bool) -> Promotion:
    return Promotion("night", run_id, "new", "old", promoted, "because", {"p_value": 0.01})


def test_decisions_stay_in_order_and_a_run_has_one(attempt: Attempt) -> None:
    store = attempt.store
    runs.create_run(store, "next", {}, "hash", "folder")
    made = evaluations.decide(store, decision(attempt.run_id, True))
    evaluations.decide(store, decision("next", False))
    assert evaluations.decide(store, decision(attempt.run_id, False)) == made
    first, second = evaluations.promotions(store, "night")
    assert (first, second.promoted) == (made, False)
    assert first.numbers == {"p_value": 0.01}
    assert first.at > 0
    assert evaluations.promotions(store, "day") == []
