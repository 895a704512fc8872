"""`agrpo train` and `agrpo resume` until the run begins: which store, whose run, what is in the way."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from agrpo import runfile
from agrpo.store import Attempt, Store, leases, runs, steps
from agrpo.store.store import VERSION_TABLE
from tests.worlds.prefect_answers import prefect_answering
from tests.worlds.small_groups import DEAD
from tests.worlds.tiny_run import AGRPO

MODULE = """
import os, signal
from pathlib import Path

def rows():
    return [{"prompt": [{"role": "user", "content": "1"}]}]

def interrupted():
    \"\"\"Ctrl-C comes when Prefect's flow looks at the data, which the command has done before.\"\"\"
    if Path("seen").exists():
        os.kill(os.getpid(), signal.SIGINT)
    Path("seen").touch()
    return rows()

def reward(completions, **columns):
    return [0.0 for _ in completions]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which `agrpo train run.yaml` would start a run."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    content: dict[str, Any] = {"name": "x", "model": {"path": "./model"}, "data": {"rows": "mine.py:rows"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content | {"rewards": ["mine.py:reward"]}))
    return tmp_path


@pytest.fixture
def attempt(folder: Path) -> Iterator[Attempt]:
    """An attempt of this process at the run, in a store of its own."""
    store = Store.open(f"sqlite:///{folder}/own/agrpo.db")
    store.migrate()
    run = runfile.load(folder / "run.yaml")
    config, digest = runfile.stored_config(run), runfile.config_hash(run)
    runs.create_run(store, "x", config, digest, str(folder / "runs" / "x"))
    attempt = leases.acquire(store, "x", leases.this_process())
    runs.set_status(attempt, "running")
    yield attempt
    store.close()


def agrpo(folder: Path, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    settings = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_API_URL": "", "AGRPO_DATABASE_URL": "", **env}
    return subprocess.run(
        [AGRPO, *arguments], cwd=folder, capture_output=True, text=True, env={**os.environ, **settings}
    )


def test_the_store_that_is_named_wins_over_the_variable(folder: Path, attempt: Attempt) -> None:
    runs.set_status(attempt, "finished")
    leases.release(attempt, "finished")
    other = f"sqlite:///{folder}/other/agrpo.db"
    ended = agrpo(folder, "resume", "x", "--store", attempt.store.url, AGRPO_DATABASE_URL=other)
    assert (ended.returncode, "x (finished)" in ended.stdout) == (0, True), ended
    assert not (folder / "other").exists()


def test_a_run_is_resumed_after_an_upgrade(folder: Path, attempt: Attempt) -> None:
    runs.set_status(attempt, "finished")
    leases.release(attempt, "finished")
    with closing(sqlite3.connect(folder / "own" / "agrpo.db")) as database, database:
        database.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0004'")
    ended = agrpo(folder, "resume", "x", "--store", attempt.store.url)
    assert (ended.returncode, "x (finished)" in ended.stdout) == (0, True), ended


def test_a_stopped_run_says_where_it_is_resumed(folder: Path, attempt: Attempt) -> None:
    leases.release(attempt, "stopped")
    settings = ("--set", f"store.url={attempt.store.url}", "--set", "data.rows=mine.py:interrupted")
    ended = agrpo(folder, "train", "run.yaml", *settings)
    assert ended.returncode == 130, ended
    assert f"resume: agrpo resume x --store {attempt.store.url}\n" in ended.stdout


def test_a_dry_run_asks_what_the_run_would_ask(folder: Path, attempt: Attempt) -> None:
    steps.record(attempt, 1, [], 0)  # it has trained
    settings = ("--set", f"store.url={attempt.store.url}", "--set", "trainer.learning_rate=1")
    ended = agrpo(folder, "train", "run.yaml", "--dry-run", *settings)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended
    assert "was started with other settings" in ended.stderr
    with prefect_answering(401) as url:
        ended = agrpo(folder, "train", "run.yaml", "--dry-run", "--set", "secrets={KEY: block}", PREFECT_API_URL=url)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended
    assert "refuses us (401)" in ended.stderr


def test_a_dry_run_says_when_it_could_not_ask_the_database(folder: Path) -> None:
    ended = agrpo(
        folder, "train", "run.yaml", "--dry-run", "--set", "store.url=postgresql://me:secret@/a?host=/nowhere"
    )
    assert (ended.returncode, "secret" in ended.stdout) == (0, False), ended
    assert "fine; run 'x'" in ended.stdout and "whether its name is free is not known" in ended.stdout


def test_new_data_is_not_accepted_for_a_run_that_somebody_runs(folder: Path, attempt: Attempt) -> None:
    runs.check_data(attempt, "fingerprint")
    ended = agrpo(folder, "resume", "x", "--store", attempt.store.url, "--accept-new-data")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "is held by process" in ended.stderr
    assert runs.get_run(attempt.store, "x").data_fingerprint == "fingerprint"


def test_new_data_of_a_scripts_run_is_accepted_for_the_script_to_go_on(folder: Path, attempt: Attempt) -> None:
    store = attempt.store
    runs.create_run(store, "train-1", {"model": "m"}, "hash", str(folder))
    runs.check_data(leases.acquire(store, "train-1", DEAD), "fingerprint")
    ended = agrpo(folder, "resume", "train-1", "--store", store.url, "--accept-new-data")
    accepted, advice = ended.stderr.splitlines()
    assert accepted == "run train-1 takes the data set that it finds next"
    assert advice.endswith("let the script call train(resume_from_checkpoint=True)")
    assert runs.get_run(store, "train-1").data_fingerprint is None


def test_a_prefect_server_that_is_away_is_one_line(folder: Path) -> None:
    ended = agrpo(folder, "train", "run.yaml", PREFECT_API_URL="http://me:secret@127.0.0.1:1/api")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended
    assert "Prefect's server at http://me@127.0.0.1:1/api does not answer" in ended.stderr
    assert "agrpo ui" in ended.stderr and "unset" in ended.stderr
    assert not (folder / "runs").exists()


def test_ctrl_c_before_the_run_is_in_the_store_ends_with_130(folder: Path) -> None:
    ended = agrpo(folder, "train", "run.yaml", "--set", "data.rows=mine.py:interrupted")
    assert (ended.returncode, ended.stderr) == (130, ""), ended
    assert "stopped before it began" in ended.stdout
