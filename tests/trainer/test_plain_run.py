"""The watch that rank 0 of a plain script keeps over its worker."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.errors import BadInput, ChildFailed, LeaseHeld
from agrpo.launch.launcher import Launcher
from agrpo.store import Attempt, Store, leases, processes, runs, servers, steps
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.plain_run import ScriptRun, attach_script, open_store, running
from agrpo.trainer.stopping import StopSwitch
from tests.trainer import ledger
from tests.worlds.processes import eventually
from tests.worlds.small_groups import DEAD, start_run

UNGUARDED = """
import multiprocessing, os
from pathlib import Path
from agrpo import AsyncGRPOConfig
from agrpo.trainer.plain_run import attach_script, open_store

folder = Path({folder!r})
args = AsyncGRPOConfig(output_dir=str(folder), use_cpu=True, report_to="none")
attach_script(open_store(folder), args, "model", resume=None)
child = multiprocessing.get_context("spawn").Process(target=print)
child.start()
child.join()
"""


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


def begin_and_stop(store: Store, args: AsyncGRPOConfig) -> None:
    """A run of which nothing is left but its row."""
    begun = attach_script(store, args, "model", resume=None)
    assert begun.attempt is not None
    leases.release(begun.attempt, "stopped")


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


def test_a_new_run_takes_the_old_checkpoints_away_only_once_it_exists(tmp_path: Path) -> None:
    """Else a script that ends in between would leave a run that cannot find them; here it ended just after that."""
    args = ledger.config(tmp_path, output_dir=str(tmp_path))
    store = open_store(tmp_path)
    begin_and_stop(store, args)
    runs.create_run(store, "train-2", {}, "hash", str(tmp_path))
    (tmp_path / "checkpoint-1").mkdir()
    attach_script(store, args, "model", resume=True)
    assert [path.name for path in tmp_path.glob("*/checkpoint-1")] == ["checkpoint-1"]
    assert not (tmp_path / "checkpoint-1").exists()
    store.close()


def test_a_resumed_run_keeps_what_it_was_filling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ledger.config(tmp_path, output_dir=str(tmp_path))
    store = open_store(tmp_path)
    for _ in range(2):
        begin_and_stop(store, args)
    second = leases.acquire(store, "train-2", DEAD)
    steps.record(second, 1, [], 0)
    steps.finish(second, 1, "digest", {})
    (tmp_path / "tmp-1-1").mkdir()
    assert attach_script(store, args, "model", resume=True).attempt is not None
    assert (tmp_path / "tmp-1-1").is_dir() and "begins" not in capsys.readouterr().out
    store.close()


def test_a_run_that_cannot_set_old_checkpoints_aside_gives_its_lease_back(tmp_path: Path) -> None:
    args = ledger.config(tmp_path, output_dir=str(tmp_path))
    store = open_store(tmp_path)
    begin_and_stop(store, args)
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "previous-1").touch()
    with pytest.raises(FileExistsError):
        attach_script(store, args, "model", resume=None)
    assert runs.get_run(store, "train-2").status == "stopped" and leases.current(store, "train-2") is None
    (tmp_path / "previous-1").unlink()
    attach_script(store, args, "model", resume=True)
    assert (tmp_path / "previous-1" / "checkpoint-1").is_dir()
    store.close()


def test_a_run_that_was_asked_to_stop_is_stopped_and_goes_on(tmp_path: Path) -> None:
    args = ledger.config(tmp_path, output_dir=str(tmp_path))
    store, stop = open_store(tmp_path), StopSwitch()
    first = attach_script(store, args, "model", resume=None)
    assert first.attempt is not None
    with running(first.attempt, args, stop):
        stop.request()
    assert runs.get_run(store, "train-1").status == "stopped"
    again = attach_script(store, args, "model", resume=True)
    assert again.attempt is not None
    with running(again.attempt, args, StopSwitch()):
        pass
    assert runs.get_run(store, "train-1").status == "finished"
    store.close()


def test_a_run_that_is_resumed_with_another_server_leaves_the_first_one(attempt: Attempt, tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:9", "http://127.0.0.1:11"):
        args = ledger.config(tmp_path, output_dir=str(tmp_path), vllm_server_base_url=url)
        stop = StopSwitch()
        stop.request()
        with running(attempt, args, stop):
            assert [server.url for server in servers.servers(attempt.store, "small")] == [url]
        attempt = leases.acquire(attempt.store, "small", DEAD)


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ({"optim_args": None}, {"optim_args": "momentum=0.9"}, "optim_args: None then, 'momentum=0.9' now"),
        ({"lr_scheduler_type": "linear", "max_steps": 5}, {"max_steps": 9}, "max_steps: 5 then, 9 now"),
        ({"max_steps": 5}, {"max_steps": 9}, None),
    ],
)
def test_settings_that_change_the_bits_stay_as_they_were(
    tmp_path: Path, before: dict[str, object], after: dict[str, object], differs: str | None
) -> None:
    store = open_store(tmp_path)
    first = attach_script(store, ledger.config(tmp_path, output_dir=str(tmp_path), **before), "model", resume=None)
    assert first.attempt is not None
    steps.record(first.attempt, 1, [], 0)
    leases.release(first.attempt, "stopped")
    args = ledger.config(tmp_path, output_dir=str(tmp_path), **{**before, **after})
    if differs is None:
        assert attach_script(store, args, "model", resume=True).attempt is not None
    else:
        with pytest.raises(BadInput, match=differs):
            attach_script(store, args, "model", resume=True)
    store.close()


def test_a_setting_that_the_run_began_without_noting_is_taken_as_it_is(tmp_path: Path) -> None:
    args = ledger.config(tmp_path, output_dir=str(tmp_path))
    store = open_store(tmp_path)
    runs.create_run(store, "train-1", {"model": "model"}, "an earlier version's", str(tmp_path))
    first = leases.acquire(store, "train-1", DEAD)
    steps.record(first, 1, [], 0)
    assert attach_script(store, args, "model", resume=True).attempt is not None
    store.close()


def test_a_script_that_is_imported_by_its_worker_is_told_so_before_anything_else(tmp_path: Path) -> None:
    """The living run would otherwise be the worker's own, and be said to be held."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(folder=str(tmp_path)))
    process = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert 'put the training under `if __name__ == "__main__":`' in process.stderr
    assert "is held by" not in process.stderr
