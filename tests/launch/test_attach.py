import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agrpo.errors import AttemptsExhausted, BadInput, LeaseHeld
from agrpo.launch.attach import attach, differing_keys
from agrpo.store import Attempt, Store, events, leases, runs, steps
from agrpo.store.leases import Holder

CONFIG = {"model": {"path": "tiny"}, "trainer": {"learning_rate": 1e-6, "max_steps": 10}}


def begin(store: Store, tmp_path: Path) -> Attempt:
    return begin_as(store, tmp_path, CONFIG, "hash")


def begin_as(store: Store, tmp_path: Path, config: dict[str, Any], config_hash: str) -> Attempt:
    attempt = attach(store, "r1", config, config_hash, tmp_path).attempt
    assert attempt is not None
    return attempt


def test_a_new_run_is_made_and_runs(store: Store, tmp_path: Path) -> None:
    attempt = begin(store, tmp_path)
    run = runs.get_run(store, "r1")
    assert (attempt.token, run.status, run.config, run.run_dir) == (1, "running", CONFIG, str(tmp_path))
    assert [event.kind for event in events.events(store, "r1")] == ["attached"]


def test_a_stopped_run_goes_on_under_the_next_token(store: Store, tmp_path: Path) -> None:
    first = begin(store, tmp_path)
    runs.set_status(first, "stopped")
    leases.release(first, "stopped")
    assert begin(store, tmp_path).token == 2
    assert runs.get_run(store, "r1").status == "running"


def test_a_finished_run_is_summed_up_and_not_run_again(store: Store, tmp_path: Path) -> None:
    """Fault 12."""
    first = begin(store, tmp_path)
    runs.set_status(first, "finished")
    leases.release(first, "finished")
    attached = attach(store, "r1", CONFIG, "hash", tmp_path)
    assert attached.attempt is None
    assert attached.finished is not None and attached.finished.status == "finished"
    assert len(leases.attempts(store, "r1")) == 1


def test_other_settings_are_refused_key_by_key_also_by_a_finished_run(store: Store, tmp_path: Path) -> None:
    first = begin(store, tmp_path)
    runs.set_status(first, "finished")
    leases.release(first, "finished")
    other = {"model": {"path": "tiny"}, "trainer": {"learning_rate": 1e-5, "max_steps": 10}, "seed": 3}
    with pytest.raises(BadInput) as refusal:
        attach(store, "r1", other, "other hash", tmp_path)
    assert str(refusal.value) == (
        "run 'r1' was started with other settings: seed: 'absent' then, 3 now; trainer.learning_rate: 1e-06 then, "
        "1e-05 now. Take those, or choose another name"
    )
    assert len(leases.attempts(store, "r1")) == 1


def test_a_run_that_failed_before_its_first_step_takes_mended_settings(store: Store, tmp_path: Path) -> None:
    first = begin(store, tmp_path)
    mended = {**CONFIG, "servers": {"args": ["--mended"]}}
    with pytest.raises(LeaseHeld):  # while somebody runs it with the old ones
        attach(store, "r1", mended, "other hash", tmp_path)
    runs.set_status(first, "failed", "the server did not start")
    leases.release(first, "failed")
    attempt = attach(store, "r1", mended, "other hash", tmp_path).attempt
    assert attempt is not None and attempt.token == 2
    assert runs.get_run(store, "r1").config == mended
    assert "servers.args: 'absent' then" in next(
        event.message for event in events.events(store, "r1") if event.kind == "settings_changed"
    )


def test_many_differences_are_counted(store: Store, tmp_path: Path) -> None:
    steps.record(begin(store, tmp_path), 1, [], 0)
    with pytest.raises(BadInput, match=r"'absent' then, 0 now; .*; and 3 more. Take those"):
        attach(store, "r1", {**CONFIG, **{f"a{key}": key for key in range(9)}}, "other hash", tmp_path)


def test_settings_are_compared_as_this_version_reads_them(store: Store, tmp_path: Path) -> None:
    first = begin(store, tmp_path)
    steps.record(first, 1, [], 0)
    leases.release(first, "stopped")
    newer = {**CONFIG, "temperature": 1.0}
    with pytest.raises(BadInput, match=r"temperature: 'absent' then, 1.0 now"):
        attach(store, "r1", newer, "other hash", tmp_path)
    attached = attach(store, "r1", newer, "other hash", tmp_path, reading=lambda stored: {"temperature": 1.0, **stored})
    assert attached.attempt is not None and attached.attempt.token == 2


def test_settings_that_decide_nothing_are_replaced(store: Store, tmp_path: Path) -> None:
    """Processes read the limits and evaluations of a run from the store."""
    first = attach(store, "r", {"seed": 1, "limits": 3}, "hash", tmp_path)
    assert first.attempt is not None
    leases.release(first.attempt, "stopped")
    assert attach(store, "r", {"seed": 1, "limits": 4}, "hash", tmp_path).attempt is not None
    assert runs.get_run(store, "r").config == {"seed": 1, "limits": 4}


def test_settings_are_compared_with_what_the_holder_that_was_waited_for_has_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renewed them, as the run had no step yet, and then made one."""
    refused = threading.Event()

    def acquire(*given: Any, **more: Any) -> Attempt:
        try:
            return acquired(*given, **more)
        except LeaseHeld:
            refused.set()
            raise

    acquired = leases.acquire
    runs.create_run(store, "r1", CONFIG, "hash", str(tmp_path))
    other = leases.acquire(store, "r1", Holder("elsewhere", 1, 1, "another boot"), ttl_s=60.0)
    monkeypatch.setattr(leases, "acquire", acquire)
    with ThreadPoolExecutor(1) as pool:
        attaching = pool.submit(attach, store, "r1", {"seed": 2}, "new hash", tmp_path)
        assert refused.wait(30)  # it has compared
        runs.set_config(other, {"seed": 1}, "its hash")
        steps.record(other, 1, [], 0)
        leases.release(other, "stopped")
        with pytest.raises(BadInput, match="seed: 1 then, 2 now"):
            attaching.result(timeout=10)
    assert begin_as(store, tmp_path, {"seed": 1}, "its hash").token == 3  # what could not begin gave the run back
    assert len([one for one in leases.attempts(store, "r1") if one.outcome == "failed"]) == 0


def test_a_run_that_somebody_runs_is_refused_at_once(store: Store, tmp_path: Path) -> None:
    begin(store, tmp_path)
    with pytest.raises(LeaseHeld, match="is held by process"):
        attach(store, "r1", CONFIG, "hash", tmp_path, wait_s=60.0)


def test_a_dead_holder_on_this_host_is_replaced_at_once(store: Store, tmp_path: Path) -> None:
    runs.create_run(store, "r1", CONFIG, "hash", str(tmp_path))
    here = leases.this_process()
    dead = subprocess.Popen(["true"])
    dead.wait()
    leases.acquire(store, "r1", Holder(here.host, dead.pid, 1, here.boot_id))
    assert begin(store, tmp_path).token == 2


def test_a_silent_holder_elsewhere_is_waited_for(store: Store, tmp_path: Path) -> None:
    runs.create_run(store, "r1", CONFIG, "hash", str(tmp_path))
    leases.acquire(store, "r1", Holder("elsewhere", 1, 1, "another boot"), ttl_s=1.0)
    assert begin(store, tmp_path).token == 2


def test_a_silent_holder_elsewhere_is_not_waited_for_for_ever(store: Store, tmp_path: Path) -> None:
    runs.create_run(store, "r1", CONFIG, "hash", str(tmp_path))
    leases.acquire(store, "r1", Holder("elsewhere", 1, 1, "another boot"), ttl_s=60.0)
    with pytest.raises(LeaseHeld):
        attach(store, "r1", CONFIG, "hash", tmp_path, wait_s=0.6)


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_was_set_back_does_not_keep_a_dead_holder_and_none_loses_a_living_one(
    store: Store, tmp_path: Path, jump_s: float
) -> None:
    """The holder has renewed before the jump, and is silent since."""
    runs.create_run(store, "r1", CONFIG, "hash", str(tmp_path))
    leases.acquire(store, "r1", Holder("elsewhere", 1, 1, "another boot"), ttl_s=1.0)
    with store.write() as connection:
        connection.execute(
            text("UPDATE attempts SET expires_at = expires_at - :s, renewed_at = renewed_at - :s"), {"s": jump_s}
        )
    assert begin(store, tmp_path).token == 2
    with pytest.raises(LeaseHeld):  # this process holds it now, whatever the clock says
        with store.write() as connection:
            connection.execute(text("UPDATE attempts SET expires_at = 0, renewed_at = 0"))
        attach(store, "r1", CONFIG, "hash", tmp_path, wait_s=0.0)


def test_an_attempt_says_how_the_one_before_it_ended(store: Store, tmp_path: Path) -> None:
    first = begin(store, tmp_path)
    runs.set_status(first, "failed", "the server did not start:\nits log")
    leases.release(first, "failed")
    for _ in range(2):
        leases.release(begin(store, tmp_path), "stopped")
    here, dead = leases.this_process(), subprocess.Popen(["true"])
    dead.wait()
    leases.acquire(store, "r1", Holder(here.host, dead.pid, 1, here.boot_id))
    begin(store, tmp_path)
    assert [event.message for event in events.events(store, "r1") if event.kind == "attached"] == [
        "attempt 1 begins",
        "attempt 1 failed: the server did not start:; attempt 2 begins",
        "attempt 2 was stopped; attempt 3 begins",
        f"attempt 4 died (process {dead.pid} on {here.host}); attempt 5 begins",
    ]


def test_a_run_that_died_too_often_is_given_up(store: Store, tmp_path: Path) -> None:
    runs.create_run(store, "r1", CONFIG, "hash", str(tmp_path), max_attempts=2)
    for _ in range(2):
        leases.release(begin(store, tmp_path), "failed")
    with pytest.raises(AttemptsExhausted):
        begin(store, tmp_path)
    assert runs.get_run(store, "r1").status == "failed"


def test_keys_that_differ_are_found_at_any_depth() -> None:
    old = {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": {}, "same": 1}
    new = {"a": {"b": 2, "c": {"d": [1]}}, "e": {"f": None}, "same": 1}
    assert differing_keys(old, new) == {
        "a.b": (1, 2),
        "a.c.d": ([1, 2], [1]),
        "e": ({}, "absent"),
        "e.f": ("absent", None),
    }
