"""Real processes, killed at random times: nothing is lost, nothing trained twice, and the weights are the ledger's."""

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from agrpo.cli.fork import fork_run
from agrpo.session.replays import replay_run
from agrpo.store import command, runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun
from tests.worlds.postgres import Postgres

NUM_KILLS = 20
STEPS_AHEAD = 3
PAUSE_S = 4.0
AT_WORK = 0.2
SEED = 4


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillRun]:
    """One run for all tests of this file, which are its chapters; it has no end of its own."""
    with ExitStack() as stack:
        url = None
        if request.param == "postgresql":
            postgres = Postgres(fsync=True)
            stack.callback(postgres.stop)
            url = postgres.create()
        yield stack.enter_context(KillRun(tmp_path_factory.mktemp("killed"), url, num_rows=100_000))


def test_a_run_survives_kills_at_random_times_without_losing_a_group(run: KillRun) -> None:
    run.start()
    run.wait("the first process", lambda: bool(run.alive()))
    killed = list(run.kill_many(NUM_KILLS, Random(SEED), PAUSE_S, AT_WORK))
    print(f"killed: {', '.join(killed)}")
    goal = run.step() + STEPS_AHEAD
    run.wait(f"step {goal}", lambda: run.step() >= goal)
    runs.request(run.store, NAME, "stop")
    run.wait("the stop", run.ended)
    assert (len(killed), runs.get_run(run.store, NAME).status) == (NUM_KILLS, "stopped"), run.log()
    assert run.lost_groups() == [] and run.diverged() == []
    assert verify(run.store, NAME).problems == []


def test_its_weights_are_those_of_the_same_ledger_without_a_kill(run: KillRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.folder)
    again = replay_run(run.store, NAME, run.step())
    assert (again.verdict, again.first_difference, len(again.checks)) == ("equal", None, run.step())


def test_a_fork_goes_on_from_a_step_without_a_checkpoint(run: KillRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.folder)
    begin, end = run.step() - 2, run.step() + 1
    changes = [f"trainer.max_steps={end}", "trainer.learning_rate=2e-3", "trainer.save_total_limit=3"]
    said = fork_run(run.store_url, NAME, begin, "fork", changes)
    assert said.endswith(command("resume fork", run.store_url))
    run.start("fork")
    run.wait("the fork's end", run.ended)
    assert runs.get_run(run.store, "fork").step == end, run.log()
    assert verify(run.store, "fork").problems == verify(run.store, NAME).problems == []
    again = replay_run(run.store, "fork", end, from_step=begin)
    assert (again.verdict, again.first_difference, len(again.checks)) == ("equal", None, 3)
