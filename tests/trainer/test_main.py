"""The trainer as a process of its own, on ledgers made by hand and a real server."""

import os
import signal
import subprocess
import sys

import pytest

from agrpo import runfile
from agrpo.launch import exits
from agrpo.store import checkpoints, leases, processes, runs, servers
from tests.trainer import ledger
from tests.worlds.processes import eventually

pytestmark = pytest.mark.usefixtures("ledgers_hold")

START_S = 90.0
"""Importing torch on a busy machine takes its time."""


@pytest.fixture
def store(tmp_path):
    store = ledger.open_store(tmp_path)
    yield store
    store.close()


def start_run(store, run_dir, model_path, name, **trainer):
    """A run as a run file would have made it, under an attempt of a launcher that is not there."""
    given = {
        "name": name,
        "model": {"path": str(model_path)},
        "data": {"rows": "tests.trainer.test_main:rows"},
        "rewards": ["tests.trainer.test_main:rows"],
        "trainer": {"groups_per_step": 2, "token_budget": 64, "max_staleness": 100, "learning_rate": 1e-3, **trainer},
    }
    run = runfile.parse(given, "test")
    runs.create_run(store, name, runfile.stored_config(run), runfile.config_hash(run), str(run_dir))
    return leases.acquire(store, name, leases.this_process())


def rows():
    """No row is ever asked for: the ledger is made by hand."""
    return []


def serve(attempt, url):
    servers.set_state(attempt, servers.register(attempt, url, 0), "healthy")


def command(attempt):
    options = (
        "--store",
        attempt.store.url,
        "--run",
        attempt.run_id,
        "--token",
        str(attempt.token),
        "--process-id",
        "1",
    )
    return [sys.executable, "-m", "agrpo.trainer.main", *options]


def launch(attempt):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command(attempt), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process, within_s=START_S):
    output, _ = process.communicate(timeout=within_s)
    return process.returncode, output


def test_it_trains_what_lies_in_the_store_and_ends_with_0(vllm_server, store):
    run_dir = vllm_server.weights_dir.parent
    attempt = start_run(store, run_dir, vllm_server.model_path, "whole")
    serve(attempt, vllm_server.url)
    ledger.fill(attempt, 4)
    code, output = finish(launch(attempt))
    assert code == exits.DONE, output
    run = runs.get_run(store, "whole")
    assert (run.step, run.checkpoint_step, run.policy_version) == (2, 2, 2)
    assert run.checkpoint_path == str(run_dir / "checkpoints" / "checkpoint-2")
    assert "Traceback" not in output


def test_sigterm_while_it_waits_saves_the_last_finished_step(vllm_server, store):
    run_dir = vllm_server.weights_dir.parent
    attempt = start_run(store, run_dir, vllm_server.model_path, "stopped")
    serve(attempt, vllm_server.url)
    worker = ledger.fill(attempt, 3, data_ended=False)
    ledger.say(attempt, worker, in_flight=1, admission_open=True, data_ended=False)
    process = launch(attempt)

    def waits():
        beats = processes.heartbeats(store, "stopped")
        return process.poll() is not None or any("4 pending" in (beat.detail or "") for beat in beats)

    eventually(waits, START_S)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process, within_s=30.0)
    assert code == exits.STOPPED, output
    assert checkpoints.cursor(store, "stopped").step == 1


def test_it_stops_and_touches_nothing_when_another_attempt_has_taken_over(vllm_server, store):
    first = start_run(store, vllm_server.weights_dir.parent, vllm_server.model_path, "taken")
    ledger.fill(first, 2)
    leases.release(first, "stopped")
    leases.acquire(store, "taken", leases.this_process())
    code, output = finish(launch(first))
    assert code == exits.LEASE_LOST, output
    assert runs.get_run(store, "taken").environment is None


def test_another_number_of_processes_than_asked_for_is_refused(vllm_server, store):
    attempt = start_run(store, vllm_server.weights_dir.parent, vllm_server.model_path, "ranks", ranks=2)
    code, output = finish(launch(attempt))
    assert code == exits.BAD_INPUT, output
    assert "trainer.ranks is 2, but 1 processes came up" in output
