"""Where restarts are drawn."""

from pathlib import Path

from agrpo.plotting.history import Mark, read_history
from agrpo.store import Store, evaluations, events, leases, metrics
from tests.worlds.small_groups import start_run


def test_a_restart_stands_at_the_step_before_it(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    first = start_run(store)
    events.add(first, "attached", "attempt 1 begins")
    metrics.log(first, 1, {"reward": 0.0})
    metrics.log(first, 2, {"reward": 0.5})
    events.add(first, "restart", "trainer 0 was ended by signal 9")
    second = leases.acquire(store, "small", leases.this_process())
    metrics.log(second, 3, {"reward": 1.0})
    events.add(second, "attached", "attempt 2 begins")
    history = read_history(store, "small")
    assert history.marks == [Mark(2, "trainer 0 was ended by signal 9"), Mark(3, "attempt 2 begins")]
    assert [step for step, _ in history.series] == [1, 2, 3]


def test_evaluations_of_one_set_of_prompts_are_drawn_whatever_else_was_logged(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    attempt = start_run(store)
    metrics.log(attempt, 2, {"reward": 0.5})
    for step, tasks, reward in ((0, "held out", 0.25), (2, "held out", 0.5), (3, "held out", 0.75), (3, "other", 0.0)):
        number = evaluations.begin(store, "small", step, f"weights {step}", tasks)
        evaluations.finish(store, number, {"reward": {"value": reward}})
    series = read_history(store, "small").series
    assert series == [
        (0, {"evaluation/reward": 0.25}),
        (2, {"reward": 0.5, "evaluation/reward": 0.5}),
        (3, {"evaluation/reward": 0.75}),
    ]
