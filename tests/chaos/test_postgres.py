"""The same run on PostgreSQL: its processes are killed, and the database itself goes down and comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.store import runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun
from tests.worlds.postgres import Postgres

NUM_STEPS = 14


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres(fsync=True)
    yield server
    server.stop()


def test_a_run_survives_kills_and_a_crash_of_its_database(tmp_path: Path, postgres: Postgres) -> None:
    with KillRun(tmp_path / "run", url=postgres.create(), max_steps=NUM_STEPS) as run:
        run.start()
        run.wait("two steps", lambda: run.step() >= 2)
        for victim in ("worker", "trainer", "launcher"):
            run.kill(victim)
            goal = run.step() + 2
            run.wait(f"step {goal} after the end of the {victim}", lambda goal=goal: run.step() >= goal)
        before = runs.get_run(run.store, NAME)
        postgres.restart()
        run.wait("the end", lambda: run.launcher is not None and run.launcher.poll() == 0)
        after = runs.get_run(run.store, NAME)
        assert (after.status, after.step) == ("finished", NUM_STEPS), run.log()
        assert after.token == before.token  # nobody had to take over
        assert verify(run.store, NAME).problems == []
