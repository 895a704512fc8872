"""Ctrl-C at the command line, and what is said at the end of a run."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings
from rich.console import Console

from agrpo.errors import Outage
from agrpo.runfile import RunFile, config_hash, parse, stored_config
from agrpo.store import Store, leases, runs
from flows import console
from tests.worlds.prefect_answers import prefect_answering

PROGRAM = """
import os, signal
from flows import console
console._listen_for_stops()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    print("the processes of the run were ended")
console._STOPPING_S = 0.0
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_ctrl_c_does_not_break_off_the_stopping_but_a_late_one_is_heard() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.stdout == "the processes of the run were ended\n"
    assert ended.stderr.endswith("KeyboardInterrupt\n")


GIVEN = {"name": "x", "model": {"path": "m"}, "data": {"rows": "mine.py:rows"}, "rewards": ["mine.py:reward"]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFile:
    """A run that Prefect's last answer says nothing about."""
    monkeypatch.delenv("AGRPO_DATABASE_URL", raising=False)

    def train(config: RunFile, return_state: bool) -> None:
        request = httpx.Request("POST", "http://prefect/api/flow_runs/1/set_state")
        raise PrefectHTTPStatusError("500", request=request, response=httpx.Response(500, request=request))

    monkeypatch.setattr("flows.train.train", train)
    return parse({**GIVEN, "store": {"url": f"sqlite:///{tmp_path}/agrpo.db"}}, "test")


def finish(run: RunFile) -> None:
    store = Store.open(run.store_url)
    store.migrate()
    runs.create_run(store, run.name, stored_config(run), config_hash(run), str(run.run_dir))
    attempt = leases.acquire(store, run.name, leases.this_process())
    for status in ("running", "finished"):
        runs.set_status(attempt, status)
    store.close()


def test_a_run_whose_end_prefect_missed_is_finished(
    run: RunFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(run)
    with prefect_answering(200, "/flows/filter") as url, temporary_settings({PREFECT_API_URL: url}):
        console._train(run, tmp_path, Console())
        assert console._outcome(run, Console(), False, "agrpo resume x") == 0
        assert f"UI: {url.removesuffix('/api')}\n" in capsys.readouterr().out


def test_a_run_that_prefect_did_not_let_begin_says_so(run: RunFile, tmp_path: Path) -> None:
    with (
        prefect_answering(200, "/flows/filter") as url,
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(Outage, match="answers 500 to /api/flow_runs/1/set_state"),
    ):
        console._train(run, tmp_path, Console())


def test_without_a_server_of_prefect_one_is_told_how_to_start_it(
    run: RunFile, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(run)
    with temporary_settings({PREFECT_API_URL: None}):
        console._outcome(run, Console(), False, "agrpo resume x")
    assert "UI: agrpo ui, then http://127.0.0.1:4200" in capsys.readouterr().out
