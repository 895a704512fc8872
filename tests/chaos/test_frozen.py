"""An attempt that is frozen, replaced from elsewhere and thaws: it writes nothing more, and its processes go."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from agrpo.launch.supervisor import read_stat
from agrpo.store import leases, runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun

NUM_STEPS = 14


def test_a_frozen_attempt_that_thaws_writes_nothing_more(tmp_path: Path) -> None:
    with KillRun(tmp_path, max_steps=NUM_STEPS) as run:
        run.start()
        run.wait("three steps", lambda: run.step() >= 3)
        old = run.launcher
        first = run.processes()
        assert old is not None and old.pid in first and len(first) >= 5  # launcher, two supervisors, worker, trainer
        freeze(run, first)
        seem_to_be_elsewhere(run)
        run.start()
        run.wait("the second attempt", lambda: runs.get_run(run.store, NAME).token == 2)
        goal = run.step() + 3
        run.wait("three further steps", lambda: run.step() >= goal)
        second = [pid for pid in run.processes() if pid not in first]
        freeze(run, second)  # what is written from here on, the first attempt writes
        before = content(run)
        proceed(first)
        run.wait("the end of the first attempt", lambda: not still(first) and old.poll() is not None)
        assert content(run) == before
        proceed(second)
        run.wait("the end", run.ended)
        assert runs.get_run(run.store, NAME).step == NUM_STEPS, run.log()
        assert run.diverged() == []
        assert [attempt.outcome for attempt in leases.attempts(run.store, NAME)] == [None, "finished"]
        assert verify(run.store, NAME).problems == []


def freeze(run: KillRun, pids: list[int]) -> None:
    """Stop all of them, at a moment when none of them holds the database."""
    database = sqlite3.connect(run.folder / "runs" / "agrpo.db", timeout=0.5, isolation_level=None)
    while True:
        for pid in still(pids):
            os.kill(pid, signal.SIGSTOP)
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            proceed(pids)
            continue
        database.execute("ROLLBACK")
        return database.close()


def proceed(pids: list[int]) -> None:
    for pid in still(pids):
        os.kill(pid, signal.SIGCONT)


def content(run: KillRun) -> list[str]:
    """Every row of every table."""
    with closing(sqlite3.connect(run.folder / "runs" / "agrpo.db")) as database:
        return list(database.iterdump())


def seem_to_be_elsewhere(run: KillRun) -> None:
    """Make the first attempt one of another host, whose lease has run out: nobody here may end its processes."""
    with run.store.write() as connection:
        connection.execute(text("UPDATE attempts SET host = 'elsewhere', expires_at = 0"))
        connection.execute(text("UPDATE processes SET host = 'elsewhere'"))


def still(pids: list[int]) -> list[int]:
    return [pid for pid in pids if read_stat(pid) is not None]
