"""The live display: a line a step in logs, a panel on a terminal."""

import io
import time
from pathlib import Path

from rich.console import Console

from agrpo.cli.live import render, sparkline, watching
from agrpo.cli.numbers import duration, number
from agrpo.cli.progress import read_progress
from agrpo.store import Attempt, Store, events, leases, metrics, processes, runs


def running(tmp_path: Path) -> Attempt:
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    runs.create_run(store, "climb", {"trainer": {"max_steps": 3}}, "hash", str(tmp_path))
    attempt = leases.acquire(store, "climb", leases.this_process())
    runs.set_status(attempt, "running")
    return attempt


def test_a_log_gets_each_phase_and_each_step_once(tmp_path: Path) -> None:
    attempt = running(tmp_path)
    console = Console(file=io.StringIO(), width=200)

    def printed() -> str:
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    with watching(attempt.store.url, "climb", console):
        events.add(attempt, "phase", "training")
        wait_until(lambda: "training" in printed())
        metrics.log(attempt, 1, {"reward": 0.25, "sample/staleness_mean": 1.0})
        wait_until(lambda: "step 1/3" in printed())
        metrics.log(attempt, 2, {"reward": 0.5})
    assert printed().count("training") == 1
    assert printed().count("step 1/3: reward 0.25, ") == 1
    assert printed().count("step 2/3: reward 0.50, ") == 1  # the last look comes at the end


def test_the_panel_shows_numbers_and_processes(tmp_path: Path) -> None:
    attempt = running(tmp_path)
    processes.register(attempt, "worker", 0, pid=7, pgid=7, pid_started=1, log_path="worker-0.log")
    processes.register(attempt, "trainer", 0, pid=8, pgid=8, pid_started=1, log_path="trainer-0.log")
    processes.beat(attempt, "trainer", 0, "train", "waiting for samples")
    metrics.log(attempt, 1, {"reward": 0.25})
    console = Console(file=io.StringIO(), width=200)
    console.print(render(read_progress(attempt.store, "climb")))
    panel = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("climb", "reward 0.25", "waiting for samples", "pid 7"):
        assert expected in panel


def test_a_display_without_a_store_waits_and_says_nothing(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with watching(f"sqlite:///{tmp_path}/later.db", "climb", console):
        pass
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_numbers_read_as_people_write_them() -> None:
    assert [duration(seconds) for seconds in (None, 7.4, 65, 7_620)] == ["-", "7 s", "1 min 05 s", "2 h 07 min"]
    assert [number(value) for value in (None, float("nan"), 0.126)] == ["-", "-", "0.13"]
    assert sparkline([0.0, 0.5, 1.0]) == " ▄█"
    assert sparkline([]) == ""


def wait_until(true: object, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
