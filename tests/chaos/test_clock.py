"""The wall clock jumps by an hour, forwards and back, under a run of real processes: nobody notices."""

import struct
import time
from pathlib import Path

import pytest

from agrpo.store import events, leases, processes, runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun
from tests.worlds.preload import preload

HOUR_S = 3600.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file by which the clocks of the test's child processes are set."""
    path = tmp_path / "clock"
    path.write_bytes(struct.pack("d", 0.0))
    monkeypatch.setenv("LD_PRELOAD", preload("clock"))
    monkeypatch.setenv("CLOCK_FILE", str(path))
    return path


def jump(clock: Path, offset_s: float) -> None:
    with clock.open("r+b") as file:
        file.write(struct.pack("d", offset_s))


def ahead_s(run: KillRun) -> float:
    """How far the clock of the lease's holder is ahead of this process's."""
    return leases.attempts(run.store, NAME)[-1].renewed_at - time.time()


@pytest.mark.long
def test_a_clock_that_jumps_costs_nobody_his_lease_and_restarts_nobody(tmp_path: Path, clock: Path) -> None:
    with KillRun(tmp_path / "run", max_steps=10_000) as run:
        run.start()
        run.wait("two steps", lambda: run.step() >= 2)
        for offset_s in (HOUR_S, -HOUR_S):
            jump(clock, offset_s)
            run.wait("a renewal by the new clock", lambda offset_s=offset_s: abs(ahead_s(run) - offset_s) < 60.0)
            goal = run.step() + 2
            run.wait(f"step {goal}", lambda goal=goal: run.step() >= goal)
        assert runs.get_run(run.store, NAME).token == 1
        # A launcher that dies now leaves a lease that seems to last: for its own host that is no reason to wait.
        run.kill("launcher")
        killed_at = time.monotonic()
        run.wait("the next attempt", lambda: runs.get_run(run.store, NAME).token == 2)
        assert time.monotonic() - killed_at < 25.0
        goal = run.step() + 2
        run.wait(f"step {goal}", lambda: run.step() >= goal)
        runs.request(run.store, NAME, "stop")
        run.wait("the stop", lambda: run.launcher is not None and run.launcher.poll() == 0)
        assert verify(run.store, NAME).problems == []
        assert not [event for event in events.events(run.store, NAME) if event.kind in ("restart", "hung")]
        assert all(record.restarts == 0 for record in processes.all(run.store, NAME))
