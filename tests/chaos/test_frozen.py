"""An attempt that is frozen, replaced from elsewhere and thaws: it writes nothing more, and its processes go."""

import os
import signal
import sqlite3
import time
from pathlib import Path

from sqlalchemy import text

from agrpo.launch.supervisor import read_stat
from agrpo.store import events, leases, runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun

NUM_STEPS = 14


def test_a_frozen_attempt_that_thaws_writes_nothing_more(tmp_path: Path) -> None:
    with KillRun(tmp_path, max_steps=NUM_STEPS) as run:
        run.start()
        run.wait("three steps", lambda: run.step() >= 3)
        old = run.launcher
        frozen = run.processes()
        assert old is not None and old.pid in frozen and len(frozen) >= 5  # launcher, two supervisors, worker, trainer
        freeze(run, frozen)
        seem_to_be_elsewhere(run)
        run.start()
        run.wait("the second attempt", lambda: runs.get_run(run.store, NAME).token == 2)
        goal = run.step() + 3
        run.wait("three further steps", lambda: run.step() >= goal)
        thawed_at = time.time()
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        run.wait("the end of the first attempt", lambda: not still(frozen) and old.poll() is not None)
        run.wait("the end", lambda: run.launcher is not None and run.launcher.poll() == 0)
        assert runs.get_run(run.store, NAME).step == NUM_STEPS, run.log()
        assert written_since(run, thawed_at) == []
        assert [attempt.outcome for attempt in leases.attempts(run.store, NAME)] == [None, "finished"]
        assert verify(run.store, NAME).problems == []


def freeze(run: KillRun, pids: list[int]) -> None:
    """Stop all of them, at a moment when none of them holds the database."""
    database = sqlite3.connect(run.folder / "runs" / "agrpo.db", timeout=0.5, isolation_level=None)
    while True:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            continue
        database.execute("ROLLBACK")
        return database.close()


def seem_to_be_elsewhere(run: KillRun) -> None:
    """Make the first attempt one of another host, whose lease has run out: nobody here may end its processes."""
    with run.store.write() as connection:
        connection.execute(text("UPDATE attempts SET host = 'elsewhere', expires_at = 0"))
        connection.execute(text("UPDATE processes SET host = 'elsewhere'"))


def still(pids: list[int]) -> list[int]:
    return [pid for pid in pids if read_stat(pid) is not None]


def written_since(run: KillRun, since: float) -> list[str]:
    """What the first attempt wrote after that moment."""
    late = [event.message for event in events.events(run.store, NAME) if event.token == 1 and event.at > since]
    with run.store.read() as connection:
        for table, column in (("steps", "recorded_at"), ("processes", "started_at"), ("processes", "ended_at")):
            query = text(f"SELECT count(*) FROM {table} WHERE token = 1 AND {column} > :since")
            late += [table] * int(connection.execute(query, {"since": since}).scalar_one())
    return late
