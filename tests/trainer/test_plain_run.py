"""The watch that rank 0 of a plain script keeps over its worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.errors import ChildFailed, LeaseHeld
from agrpo.launch.launcher import Launcher
from agrpo.store import Attempt, Store, leases, processes
from agrpo.trainer.plain_run import ScriptRun, attach_script, open_store
from tests.trainer import ledger
from tests.worlds.processes import eventually
from tests.worlds.small_groups import start_run


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    yield start_run(store)
    store.close()


def fails(run: ScriptRun, words: str) -> bool:
    try:
        run.watch()
    except ChildFailed as failure:
        assert words in str(failure), failure
        return True
    return False


def test_a_silent_loop_is_not_hidden_by_the_others(attempt: Attempt, tmp_path: Path) -> None:
    """Fault 13."""
    run = ScriptRun(attempt, Launcher(attempt, tmp_path), worker_timeout_s=0.5)
    for loop in ("generation", "store"):
        processes.beat(attempt, "worker", 0, loop)
    run.watch()

    def generation_is_missed() -> bool:
        processes.beat(attempt, "worker", 0, "store")
        return fails(run, "loop 'generation' gave no sign of life for rollout_worker_timeout=0.5 s")

    eventually(generation_is_missed)


def test_a_worker_that_never_starts_is_missed_whatever_an_earlier_one_said(attempt: Attempt, tmp_path: Path) -> None:
    processes.beat(attempt, "worker", 0, "store")
    run = ScriptRun(attempt, Launcher(attempt, tmp_path), worker_timeout_s=0.2)
    run.watch()
    eventually(lambda: fails(run, "loop 'start' gave no sign of life"))


def test_a_second_script_leaves_the_checkpoints_of_a_living_run_alone(tmp_path: Path) -> None:
    args = ledger.config(tmp_path, output_dir=str(tmp_path))
    store = open_store(tmp_path)
    first = attach_script(store, args, "model", resume=None)
    (tmp_path / "checkpoint-1").mkdir()
    with pytest.raises(LeaseHeld, match="run 'train-1' is held by process"):
        attach_script(store, args, "model", resume=None)
    assert (tmp_path / "checkpoint-1").is_dir() and first.attempt is not None
    leases.release(first.attempt, "stopped")
    attach_script(store, args, "model", resume=None)
    assert (tmp_path / "previous-1" / "checkpoint-1").is_dir()
    store.close()
