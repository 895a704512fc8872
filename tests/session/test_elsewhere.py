"""Workers beside those that the launcher of a run has started: real processes, as on a second machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text

from agrpo import runfile
from agrpo.errors import BadInput
from agrpo.launch.loops import MACHINE
from agrpo.session.elsewhere import work_elsewhere
from agrpo.store import Store, leases, processes, runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, ROOT, KillRun

NUM_STEPS = 12


def start_elsewhere(run: KillRun) -> subprocess.Popen[bytes]:
    """The command of a second machine, in a folder of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (run.folder / "launcher.log").open("a") as log:
        command = [sys.executable, "-m", "flows", "worker", NAME, "--store", run.store_url]
        return subprocess.Popen(command, cwd=run.folder, env=env, stdout=log, stderr=log)


def workers(run: KillRun) -> list[processes.ProcessRecord]:
    return [record for record in processes.live(run.store, NAME) if record.kind == "worker"]


def both_joined(run: KillRun, token: int) -> bool:
    """Whether two workers of this attempt are registered, and the commands behind them have said that they live."""
    said = {beat.index: beat.at for beat in processes.heartbeats(run.store, NAME) if beat.loop == MACHINE}
    rows = [record for record in workers(run) if record.token == token]
    return len(rows) == 2 and all(said.get(record.index, 0.0) >= record.started_at for record in rows)


def test_workers_elsewhere_join_every_attempt_and_end_with_the_run(tmp_path: Path) -> None:
    """The run has no worker of its own; its launcher is killed, one worker is told to leave, the other stays."""
    with KillRun(tmp_path, max_steps=NUM_STEPS) as run:
        described = yaml.safe_load((tmp_path / "run.yaml").read_text())
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({**described, "workers": {"count": 0}}))
        run.start()
        run.wait("the run", lambda: runs.find_run(run.store, NAME) is not None)
        stays, leaves = start_elsewhere(run), start_elsewhere(run)
        run.wait("both workers", lambda: both_joined(run, 1))
        run.kill("launcher")
        run.wait("both workers again", lambda: both_joined(run, 2))
        assert {record.index for record in workers(run)} == {0, 1}
        leaves.send_signal(signal.SIGINT)
        assert leaves.wait(60) == 130
        run.wait("the end", run.ended)
        assert stays.wait(60) == 0, run.log()
        assert runs.get_run(run.store, NAME).step == NUM_STEPS, run.log()
        assert verify(run.store, NAME).problems == []


def stored(folder: Path, **more: object) -> Store:
    """A run that somebody works on, with these settings."""
    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    store.migrate()
    (folder / "rows.py").write_text("def rows():\n    return []\n\n\ndef none(**columns):\n    return []\n")
    given = {"name": NAME, "model": {"path": str(folder)}, "data": {"rows": "rows.py:rows"}}
    run = runfile.parse({**given, "rewards": ["rows.py:none"], **more}, "test")
    runs.create_run(store, NAME, runfile.stored_config(run), "hash", str(folder))
    return store


def test_servers_on_loopback_of_another_machine_are_named(tmp_path: Path) -> None:
    store = stored(tmp_path)
    leases.acquire(store, NAME, leases.this_process())
    with store.write() as connection:
        connection.execute(text("UPDATE attempts SET host = 'far'"))
    with pytest.raises(BadInput, match=r"only its machine far reaches: a worker on .* needs servers\.urls"):
        work_elsewhere(store, NAME)
    store.close()


def test_a_run_that_nobody_knows_or_that_is_finished_needs_no_worker(tmp_path: Path) -> None:
    store, said = stored(tmp_path), []
    with pytest.raises(BadInput, match="there is no run 'other'"):
        work_elsewhere(store, "other")
    runs.create_run(store, "script", {"model": "x"}, "hash", str(tmp_path))
    with pytest.raises(BadInput, match="was started by a script"):
        work_elsewhere(store, "script")
    attempt = leases.acquire(store, NAME, leases.this_process())
    runs.set_status(attempt, "running")
    runs.set_status(attempt, "finished")
    work_elsewhere(store, NAME, said.append)
    assert said == [f"run {NAME} is finished"]
    store.close()
