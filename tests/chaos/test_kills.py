"""Real processes, killed at random times: nothing is lost, nothing trained twice, and the weights are the ledger's."""

from collections.abc import Iterator
from random import Random

import pytest

from agrpo.cli.fork import fork_run
from agrpo.session.replays import replay_run
from agrpo.store import runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun

NUM_KILLS = 20
NUM_STEPS = 100
PAUSE_S = 4.0
AT_WORK = 0.2
SEED = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillRun]:
    """One run for all tests of this file, which are its chapters."""
    with KillRun(tmp_path_factory.mktemp("killed"), max_steps=NUM_STEPS) as run:
        yield run


def test_a_run_survives_kills_at_random_times_without_losing_a_group(run: KillRun) -> None:
    run.start()
    run.wait("the first process", lambda: bool(run.alive()))
    killed = run.kill_many(NUM_KILLS, Random(SEED), PAUSE_S, AT_WORK)
    run.wait("the end", lambda: run.launcher is not None and run.launcher.poll() == 0, limit_s=600)
    print(f"killed: {', '.join(killed)}")
    assert (runs.get_run(run.store, NAME).status, run.step()) == ("finished", NUM_STEPS), run.log()
    assert run.lost_groups() == []
    assert verify(run.store, NAME).problems == []


def test_its_weights_are_those_of_the_same_ledger_without_a_kill(run: KillRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.folder)
    again = replay_run(run.store, NAME, NUM_STEPS)
    assert (again.verdict, again.first_difference, len(again.checks)) == ("equal", None, NUM_STEPS)


def test_a_fork_goes_on_from_a_step_without_a_checkpoint(run: KillRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.folder)
    changes = [f"trainer.max_steps={NUM_STEPS + 1}", "trainer.learning_rate=2e-3"]
    said = fork_run(run.store_url, NAME, NUM_STEPS - 2, "fork", changes)
    assert said.endswith("agrpo resume fork")
    run.start("fork")
    run.wait("the fork's end", lambda: run.launcher is not None and run.launcher.poll() == 0)
    assert runs.get_run(run.store, "fork").step == NUM_STEPS + 1, run.log()
    assert verify(run.store, "fork").problems == verify(run.store, NAME).problems == []
    again = replay_run(run.store, "fork", NUM_STEPS + 1, from_step=NUM_STEPS - 2)
    assert (again.verdict, again.first_difference, len(again.checks)) == ("equal", None, 3)
