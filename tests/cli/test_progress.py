"""Where a run stands."""

from pathlib import Path

import pytest

from agrpo.cli.progress import read_progress
from agrpo.store import Attempt, Store, groups, leases, runs, samples, steps
from tests.worlds.small_groups import DEAD, generate, start_worker


def started(folder: Path, **trainer: float) -> Attempt:
    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    store.migrate()
    runs.create_run(store, "x", {"trainer": trainer}, "hash", str(folder))
    return leases.acquire(store, "x", DEAD)


def test_a_run_by_epochs_is_as_far_as_its_prompts(tmp_path: Path) -> None:
    attempt = started(tmp_path, max_steps=-1, num_train_epochs=2.0)
    assert read_progress(attempt.store, "x").done is None  # nobody has seen the data yet
    runs.check_data(attempt, "4 rows, abc")
    worker = start_worker(attempt)
    generate(attempt, worker, 3)
    first_group = [one.sample_id for one in samples.pending(attempt.store, "x")][:2]
    rows = [steps.StepRow(0, 0, place, sample_id) for place, sample_id in enumerate(first_group)]
    steps.record(attempt, 1, rows, 0)
    assert read_progress(attempt.store, "x").done == 1 / 8
    samples.drop(attempt, [one.sample_id for one in samples.pending(attempt.store, "x")], "stale")
    groups.claim(attempt, worker, 1)
    assert read_progress(attempt.store, "x").done == 3 / 8


def test_a_run_by_steps_is_as_far_as_its_steps(tmp_path: Path) -> None:
    attempt = started(tmp_path, max_steps=4)
    steps.record(attempt, 1, [], 0)
    steps.finish(attempt, 1, "digest", {})
    assert read_progress(attempt.store, "x").done == pytest.approx(0.25)
