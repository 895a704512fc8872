import subprocess
import sys
import time

import pytest
from sqlalchemy import insert

from agrpo.errors import BadInput, StatusConflict
from agrpo.store import leases, metrics, processes, runs, samples, schema, steps
from tests.worlds.small_groups import generate, name_checkpoint, start_run, start_worker


def test_a_new_run(store):
    runs.create_run(store, "first", {"trainer": {"learning_rate": 1e-5}}, "abc", "runs/first")
    run = runs.get_run(store, "first")
    assert (run.status, run.token, run.policy_version, run.step, run.request) == ("created", 0, -1, 0, "none")
    assert (run.config, run.config_hash, run.run_dir) == ({"trainer": {"learning_rate": 1e-5}}, "abc", "runs/first")
    assert (run.started_at, run.checkpoint_path, run.wall_s, run.allowance_tokens) == (None, None, 0.0, None)


def test_a_name_is_used_once(store, attempt):
    with pytest.raises(StatusConflict, match="run 'small' exists already"):
        runs.create_run(store, "small", {}, "hash", "d")


def test_a_run_that_is_not_there(store):
    assert runs.find_run(store, "nobody") is None
    with pytest.raises(BadInput, match="no run 'nobody'"):
        runs.get_run(store, "nobody")
    with pytest.raises(BadInput, match="no run 'nobody'"):
        runs.request(store, "nobody", "stop")


def test_runs_are_listed_newest_first_each_with_its_own_numbers(store):
    for name in ("old", "new"):
        attempt = start_run(store, name)
        if name == "old":
            steps.record(attempt, 1, [], 0)
            steps.finish(attempt, 1, "aa", {})
            steps.record(attempt, 2, [], 0)
            name_checkpoint(attempt, 1, "checkpoint-1", "aa")
    new, old = runs.list_runs(store)
    assert (new.run_id, new.step, new.checkpoint_path) == ("new", 0, None)
    assert (old.run_id, old.step, old.checkpoint_path, old.checkpoint_step) == ("old", 1, "checkpoint-1", 1)


def test_the_life_of_a_run(store, attempt):
    runs.set_status(attempt, "running")
    started = runs.get_run(store, "small").started_at
    runs.set_status(attempt, "failed", "trainer: out of memory\0")
    failed = runs.get_run(store, "small")
    assert (failed.error, failed.finished_at is not None) == ("trainer: out of memory", True)
    runs.set_status(attempt, "running")
    again = runs.get_run(store, "small")
    assert (again.error, again.finished_at, again.started_at) == (None, None, started)
    runs.set_status(attempt, "finished")
    assert runs.get_run(store, "small").status == "finished"


@pytest.mark.parametrize("status", ["running", "stopped", "failed"])
def test_finished_is_final(store, attempt, status):
    runs.set_status(attempt, "running")
    runs.set_status(attempt, "finished")
    with pytest.raises(StatusConflict, match=f"is finished and cannot become {status}"):
        runs.set_status(attempt, status)


def test_what_the_trainer_and_a_person_set(store, attempt):
    runs.set_allowance(attempt, 3, 4096)
    runs.set_environment(attempt, {"torch": "2.9"})
    runs.request(store, "small", "drain")
    run = runs.get_run(store, "small")
    assert (run.allowance_step, run.allowance_tokens, run.environment) == (3, 4096, {"torch": "2.9"})
    assert run.request == "drain"


def test_a_summary(store, attempt, worker):
    generate(attempt, worker, 3)
    chosen = samples.pending(store, "small")[:3]
    steps.record(attempt, 1, [steps.StepRow(0, 0, i, one.sample_id) for i, one in enumerate(chosen)], 0)
    steps.finish(attempt, 1, "aa", {})
    name_checkpoint(attempt, 1, "checkpoint-1", "aa")
    processes.ended(attempt, worker, -9, "killed")
    start_worker(attempt)
    for step in range(1, 11):
        metrics.log(attempt, step, {"reward": step / 10, "loss": float(step)})
    metrics.log(attempt, 11, {"reward": float("nan"), "loss": 0.5})
    found = runs.summary(store, "small")
    assert (found.status, found.step, found.checkpoint, found.attempts, found.restarts) == (
        "created",
        1,
        "checkpoint-1",
        1,
        1,
    )
    assert found.reward_first_fifth == pytest.approx(0.15)  # steps 1 and 2 of the ten with a reward
    assert found.reward_last_fifth == pytest.approx(0.95)
    assert (found.groups, found.samples) == ({"trained": 1, "ready": 2}, {"trained": 3, "pending": 3})
    assert found.metrics["loss"] == 0.5


def test_a_short_run_has_a_first_and_a_last_fifth(store, attempt):
    assert runs.summary(store, "small").reward_first_fifth is None
    metrics.log(attempt, 1, {"reward": 0.25})
    metrics.log(attempt, 2, {"reward": 0.75})
    found = runs.summary(store, "small")
    assert (found.reward_first_fifth, found.reward_last_fifth) == (0.25, 0.75)


def test_a_thousand_runs_answer_within_a_second(store, attempt):
    copied = runs.get_run(store, "small")
    names = [f"run-{number}" for number in range(1000)]
    head = {
        "status": "finished",
        "config": {"trainer": dict.fromkeys("abcdefghij", 1.0)},
        "config_hash": "h",
        "run_dir": "d",
        "token": 1,
        "max_attempts": 3,
        "policy_version": 9,
        "request": "none",
        "next_prompt_index": 0,
        "last_ready_order": 0,
        "created_at": copied.created_at,
    }
    step = {"token": 1, "policy_version": 0, "recorded_at": 0.0, "finished_at": 0.0}
    with store.write() as connection:
        connection.execute(insert(schema.runs), [{"run_id": name, **head} for name in names])
        rows = [{"run_id": name, "step": number, **step} for name in names for number in range(1, 21)]
        connection.execute(insert(schema.steps), rows)
        log = {"values": {"reward": 0.5, "loss": 1.0}, "logged_at": 0.0, "reward": 0.5}
        connection.execute(insert(schema.metrics), [{"run_id": r["run_id"], "step": r["step"], **log} for r in rows])

    def took_s() -> float:
        began = time.perf_counter()
        assert len(runs.list_runs(store)) == 1001
        assert runs.summary(store, "run-500").step == 20
        return time.perf_counter() - began

    assert min(took_s() for _ in range(3)) < 1.0  # others may use the cores just now


def test_reading_the_store_imports_nothing_heavy():
    program = (
        "import sys; from agrpo.store import Store, runs, leases, processes, servers, groups, samples, steps, "
        "checkpoints, policies, metrics, events, workers; "
        "print([name for name in ('torch', 'transformers', 'vllm', 'prefect', 'alembic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wall_time_stops_with_the_attempt(store, attempt):
    leases.release(attempt, "finished")
    (record,) = leases.attempts(store, "small")
    assert runs.get_run(store, "small").wall_s == pytest.approx(record.ended_at - record.started_at)
