import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from sqlalchemy import update

from agrpo.errors import AttemptsExhausted, BadInput, LeaseHeld, LeaseLost
from agrpo.store import Attempt, Store, groups, leases, runs, schema
from agrpo.store.host import Holder, boot_id, host_name, process_started
from tests.worlds.small_groups import DEAD, start_run, start_worker

ELSEWHERE = replace(DEAD, host="another-host", boot_id="another-boot")


def race(url: str, number: int, gate) -> str:
    store = Store.open(url)
    gate.wait(60)
    try:
        leases.acquire(store, "small", leases.this_process())
    except LeaseHeld:
        gate.wait(60)
        return "held"
    gate.wait(60)  # alive until everybody has tried
    return "won"


def test_of_processes_racing_for_a_lease_exactly_one_wins(url, store):
    runs.create_run(store, "small", {}, "hash", "d")
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(4) as pool:
        gate = manager.Barrier(4)
        results = pool.starmap(race, [(url, number, gate) for number in range(4)], chunksize=1)
    assert sorted(results) == ["held", "held", "held", "won"]
    assert runs.get_run(store, "small").token == 1


def test_a_live_holder_on_this_host_is_not_replaced(store):
    start_run(store, holder=leases.this_process())
    with pytest.raises(LeaseHeld, match=rf"held by process {os.getpid()} on {host_name()} \(attempt 1\) for 30 s"):
        leases.acquire(store, "small", DEAD)


def test_a_live_holder_is_replaced_after_its_time(store):
    start_run(store, holder=leases.this_process())
    with store.write() as connection:
        connection.execute(update(schema.attempts).values(expires_boot_s=0.0))
    assert leases.acquire(store, "small", DEAD).token == 2


def test_a_jump_of_the_wall_clock_does_not_end_a_lease_on_this_host(store):
    start_run(store, holder=leases.this_process())
    with store.write() as connection:
        connection.execute(update(schema.attempts).values(expires_at=time.time() - 3600, renewed_at=0.0))
    with pytest.raises(LeaseHeld):
        leases.acquire(store, "small", DEAD)


def test_a_dead_holder_on_this_host_is_replaced_at_once(store, attempt):
    assert leases.acquire(store, "small", leases.this_process()).token == 2


def test_a_pid_that_was_used_again_does_not_hold_the_lease(store):
    this = leases.this_process()
    start_run(store, holder=replace(this, pid_started=this.pid_started - 1))
    assert leases.acquire(store, "small", this).token == 2


def test_a_killed_holder_that_nobody_reaped_is_dead(store):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = Holder(host_name(), child.pid, process_started(child.pid), boot_id())
    start_run(store, holder=holder)
    with pytest.raises(LeaseHeld):
        leases.acquire(store, "small", DEAD)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert leases.acquire(store, "small", DEAD).token == 2
    child.communicate()


def test_a_holder_elsewhere_is_replaced_after_its_time_only(store):
    start_run(store, holder=ELSEWHERE)
    with pytest.raises(LeaseHeld, match="on another-host"):
        leases.acquire(store, "small", leases.this_process())
    with store.write() as connection:
        connection.execute(update(schema.attempts).values(expires_at=time.time() - 0.1))
    assert leases.acquire(store, "small", leases.this_process()).token == 2


def test_renewing_keeps_it(store):
    attempt = start_run(store, holder=ELSEWHERE)
    (before,) = leases.attempts(store, "small")
    leases.renew(attempt, ttl_s=100)
    (after,) = leases.attempts(store, "small")
    assert after.expires_at > before.expires_at + 60
    assert after.started_at == before.started_at


def test_a_released_lease_is_free_at_once(store):
    attempt = start_run(store, holder=leases.this_process())
    leases.release(attempt, "stopped")
    assert leases.acquire(store, "small", ELSEWHERE, flow_run_id="flow-7").token == 2
    first, second = leases.attempts(store, "small")
    assert (first.outcome, first.ended_at is not None) == ("stopped", True)
    assert (second.outcome, second.ended_at, second.flow_run_id, second.holder) == (None, None, "flow-7", ELSEWHERE)
    with pytest.raises(LeaseLost):
        leases.renew(attempt)


def test_a_takeover_frees_the_claims_and_forgets_the_request(store, attempt, worker):
    claims = groups.claim(attempt, worker, 2)
    runs.request(store, "small", "stop")
    later = leases.acquire(store, "small", DEAD)
    assert runs.get_run(store, "small").request == "none"
    assert groups.claim(later, start_worker(later), 2) == claims


def test_a_run_that_keeps_dying_is_given_up(store):
    attempt = start_run(store, max_attempts=3)
    leases.release(attempt, "stopped")  # a clean stop does not count
    for _ in range(3):
        leases.acquire(store, "small", DEAD)
    with pytest.raises(AttemptsExhausted, match="died or failed in 3 attempts"):
        leases.acquire(store, "small", DEAD)
    run = runs.get_run(store, "small")
    assert (run.status, run.token) == ("failed", 4)
    assert "its limit" in run.error


def test_more_attempts_can_be_allowed(store):
    start_run(store, max_attempts=1)
    with pytest.raises(AttemptsExhausted):
        leases.acquire(store, "small", DEAD)
    runs.allow_attempts(store, "small", 2)
    assert leases.acquire(store, "small", DEAD).token == 2


def test_no_such_run(store):
    with pytest.raises(BadInput, match="no run 'nobody'"):
        leases.acquire(store, "nobody", DEAD)


def test_wall_time_is_the_sum_of_the_attempts(store):
    attempt = start_run(store)
    leases.acquire(store, "small", DEAD)
    leases.acquire(store, "small", DEAD)
    now = time.time()
    times = {
        1: {"started_at": 100.0, "ended_at": 110.0},  # 10 s, then a pause that does not count
        2: {"started_at": 500.0, "renewed_at": 503.0, "expires_at": 533.0},  # died: 3 s
        3: {"started_at": now - 7.0, "expires_at": now + 30.0},  # alive: 7 s so far
    }
    with store.write() as connection:
        for token, values in times.items():
            connection.execute(update(schema.attempts).where(schema.attempts.c.token == token).values(**values))
    assert runs.get_run(store, attempt.run_id).wall_s == pytest.approx(20.0, abs=1.0)


def test_the_current_attempt_is_the_one_whose_holder_lives_and_has_not_ended(store):
    attempt = start_run(store, holder=leases.this_process())
    assert leases.current(store, "small") == attempt
    leases.release(attempt, "stopped")
    assert leases.current(store, "small") is None
    leases.acquire(store, "small", DEAD)
    assert leases.current(store, "small") is None
    leases.release(Attempt(store, "small", 2), "stopped")
    elsewhere = leases.acquire(store, "small", ELSEWHERE)
    assert leases.current(store, "small") == elsewhere
    leases.renew(elsewhere, ttl_s=-1.0)
    assert leases.current(store, "small") is None
