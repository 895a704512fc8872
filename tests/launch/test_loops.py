"""Loops that say they are alive, and loops that do not."""

import time
from pathlib import Path

import pytest
from sqlalchemy import text

from agrpo.launch.launcher import Launcher
from agrpo.launch.loops import MACHINE, LoopWatch
from agrpo.store import Attempt, Store, events, groups, processes, workers
from tests.launch.test_launcher import SLEEP, shell
from tests.worlds.processes import eventually, stays

HANGS = "hangs: its loop 'generation' has said nothing for"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agrpo.launch.loops._EVERY_S", 0.05)


def beat(attempt: Attempt, *loops: str) -> None:
    for loop in loops:
        processes.beat(attempt, "worker", 0, loop)


def hung(store: Store) -> list[str]:
    return [event.message for event in events.events(store, "r1") if event.kind == "hung"]


def test_what_was_said_before_the_first_look_is_no_sign_of_life(attempt: Attempt) -> None:
    beat(attempt, "store")
    watch = LoopWatch(attempt)
    watch.look()
    assert watch.silent_s("worker", 0) == {}
    beat(attempt, "store", "scoring")
    watch.look()
    assert watch.silent_s("worker", 0).keys() == {"store", "scoring"}
    assert watch.silent_s("worker", 1) == watch.silent_s("trainer", 0) == {}


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_silence_is_not_measured_by_the_loops_clock(attempt: Attempt, jump_s: float) -> None:
    watch = LoopWatch(attempt)
    watch.look()
    beat(attempt, "store")
    with attempt.store.write() as connection:
        connection.execute(text("UPDATE heartbeats SET at = at + :s"), {"s": jump_s})
    watch.look()
    assert watch.silent_s("worker", 0)["store"] < 60.0


def test_one_silent_loop_is_enough_and_the_reason_is_kept(launcher: Launcher, store: Store) -> None:
    """Fault 13: another loop's heartbeat does not hide it."""
    launcher.start(shell(SLEEP, silence_limit_s=0.4))

    def both_are_heard() -> bool:
        beat(launcher.attempt, "generation", "store")
        return len(launcher.loops.silent_s("worker", 0)) == 2

    begun = time.monotonic()
    eventually(both_are_heard)

    def is_restarted() -> bool:
        beat(launcher.attempt, "store")
        return launcher.children()[0].restarts == 1

    eventually(is_restarted)
    assert time.monotonic() - begun > 0.3
    (message,) = hung(store)
    assert message.startswith(f"worker 0 {HANGS}") and message.endswith("(limit 0 s)")
    (restart,) = [event.message for event in events.events(store, "r1") if event.kind == "restart"]
    assert restart.startswith("worker 0 was ended by signal 15; restart 1 of 3")


def test_a_child_that_never_spoke_is_left_alone(attempt: Attempt, tmp_path: Path) -> None:
    """It may be loading, for as long as that takes; what its predecessor said does not count."""
    beat(attempt, "generation")
    with Launcher(attempt, tmp_path) as launcher:
        launcher.start(shell(SLEEP, silence_limit_s=0.1))
        launcher.start(shell(SLEEP, index=1))
        stays(lambda: hung(attempt.store) == [], for_s=0.6)
        assert [child.restarts for child in launcher.children()] == [0, 0]


def test_a_loop_that_goes_on_speaking_is_left_alone(launcher: Launcher, store: Store) -> None:
    launcher.start(shell(SLEEP, silence_limit_s=2.0))

    def speaks() -> bool:
        beat(launcher.attempt, "generation")
        return hung(store) == []

    stays(speaks, for_s=3.0)


def test_the_next_process_has_its_own_time(launcher: Launcher, store: Store) -> None:
    """The one that took the place of a hung one is not judged by what the hung one said."""
    launcher.start(shell(SLEEP, silence_limit_s=0.3))

    def is_heard() -> bool:
        beat(launcher.attempt, "generation")
        return bool(launcher.loops.silent_s("worker", 0))

    eventually(is_heard)
    eventually(lambda: launcher.children()[0].restarts == 1)
    stays(lambda: len(hung(store)) == 1, for_s=0.8)
    assert launcher.children()[0].restarts == 1


def test_a_worker_elsewhere_lives_while_its_machine_speaks_and_frees_its_claims_when_it_is_silent(
    launcher: Launcher, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer waits for groups in flight: those of a machine that went away must not be waited for."""
    monkeypatch.setattr("agrpo.launch.loops._MACHINE_SILENCE_S", 2.0)
    attempt = launcher.attempt
    own = launcher.start(shell(SLEEP))
    number = processes.register(attempt, "worker", 1, 1, 1, 1, "log")
    groups.claim(attempt, number, 1)
    workers.state(attempt, number, 1, True, False, 0)

    def speaks() -> bool:
        processes.beat(attempt, "worker", 1, MACHINE)
        return [record.id for record in processes.live(store, "r1")] == [own, number]

    stays(speaks, for_s=3.0)
    eventually(lambda: workers.states(store, "r1") == [])
    assert [record.id for record in processes.live(store, "r1")] == [own]
    assert [group.claimed_by for group in groups.groups(store, "r1")] == [None]
    (event,) = [event for event in events.events(store, "r1") if event.kind == "given_up"]
    assert event.message.startswith("worker 1 on ") and "silent for" in event.message


def test_a_launcher_elsewhere_gives_up_nobody(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agrpo.launch.loops._MACHINE_SILENCE_S", 0.0)
    number = processes.register(attempt, "worker", 1, 1, 1, 1, "log")
    watch = LoopWatch(attempt, owns_run=False)
    for _ in range(2):
        watch.check([], lambda process_id, reason: None)
    assert [record.id for record in processes.live(attempt.store, "r1")] == [number]
