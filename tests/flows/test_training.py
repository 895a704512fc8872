"""The whole path with a real vLLM server: train, kill everything once, stop, resume, finish."""

import json
import signal
import time
from pathlib import Path

import pytest

from agrpo.session.session import STOP_S
from agrpo.store import metrics, steps
from agrpo.store.verify import verify
from tests.test_docs import documented_metrics
from tests.worlds.tiny_run import NAME, TinyRun

NUM_STEPS = 24


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """One run for all tests of this file, which are its chapters."""
    return TinyRun(tmp_path_factory.mktemp("run"), max_steps=NUM_STEPS, save_steps=2)


def test_a_run_goes_on_when_any_of_its_processes_is_killed(run: TinyRun) -> None:
    flow = run.start("train", "run.yaml")
    run.wait_for_steps(2, flow)
    for kind in ("trainer", "worker", "server"):
        run.kill(kind, flow)
        run.wait_for_steps(2, flow)
    flow.kill()
    flow.wait()
    deadline = time.monotonic() + 30
    while any("agrpo.trainer" in line or "agrpo.rollout" in line for line in run.leftovers()):
        assert time.monotonic() < deadline, run.leftovers()
        time.sleep(0.1)
    assert run.summary().restarts == 3


def test_the_next_attempt_takes_over_the_server_and_ctrl_c_stops_it(run: TinyRun) -> None:
    server = run.alive()["server"]
    flow = run.start("resume", NAME)
    run.wait_for_steps(2, flow)
    assert run.alive()["server"] == server
    asked_at = time.monotonic()
    flow.send_signal(signal.SIGINT)
    run.wait("the run is stopped", lambda: flow.poll() is not None or run.summary().status == "stopped", flow)
    assert time.monotonic() - asked_at < STOP_S + 5
    assert flow.wait(timeout=60) == 130
    assert f"agrpo resume {NAME}" in run.log()
    assert run.leftovers() == []
    assert run.summary().checkpoint is not None


def test_the_same_command_again_finishes_it_with_every_sample_trained_once(run: TinyRun) -> None:
    assert run.start("train", "run.yaml").wait(timeout=300) == 0, run.log()
    assert (run.summary().status, run.summary().step) == ("finished", NUM_STEPS)
    trained = [row.sample_id for step in range(1, NUM_STEPS + 1) for row in steps.rows(run.store, NAME, step)]
    assert len(trained) == len(set(trained)) == run.summary().samples["trained"]
    assert run.leftovers() == []
    assert verify(run.store, NAME).problems == []


def test_every_metric_that_it_logged_is_described(run: TinyRun) -> None:
    logged = {name for _, values in metrics.series(run.store, NAME) for name in values}
    assert len(logged) > 50
    assert [name for name in sorted(logged) if not documented_metrics().fullmatch(name)] == []


def test_the_checkpoint_is_a_model(run: TinyRun) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(run.folder / "runs" / NAME / "model")
    assert AutoModelForCausalLM.from_pretrained(folder).config.hidden_size == 64
    assert AutoTokenizer.from_pretrained(folder).chat_template is not None


def test_a_finished_run_does_nothing(run: TinyRun) -> None:
    started_at = time.monotonic()
    assert run.start("train", "run.yaml").wait(timeout=120) == 0, run.log()
    assert (run.summary().step, run.summary().attempts) == (NUM_STEPS, 3), time.monotonic() - started_at


def test_other_settings_under_the_same_name_are_refused(run: TinyRun) -> None:
    assert run.start("train", "run.yaml", "--set", "trainer.learning_rate=1e-4").wait(timeout=120) == 2
    assert "trainer.learning_rate: 0.001 then, 0.0001 now" in run.log()


def test_nothing_scary_was_printed(run: TinyRun) -> None:
    for word in ("Traceback", "GET /", "POST /", "WARNING", "Crash"):
        assert word not in run.log()


def test_show_says_how_it_went(run: TinyRun) -> None:
    shown = run.start("show", NAME, "--json")
    assert shown.wait(timeout=30) == 0
    assert json.loads(run.log().splitlines()[-1])["status"] == "finished"
