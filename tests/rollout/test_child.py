"""A process that answers calls: how it starts, ends and is found out."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agrpo.errors import BadInput
from agrpo.rollout import child
from agrpo.rollout.child import Child, ChildBug, ChildDied, Served
from agrpo.rollout.threads import CallOverran
from tests.worlds.processes import eventually, is_running, pids_in

ROOT = Path(__file__).parents[2]
unpicklable = lambda: None  # noqa: E731


def give_it() -> Callable[[], None]:
    return unpicklable


def served(said: Path) -> Served:
    return Served({"give": give_it, "hang": signal.pause}, os.getpid(), partial(said.write_text, "left"))


def starts_badly(how: str) -> Served:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(3)
    time.sleep(3600)
    raise AssertionError


@pytest.mark.parametrize(
    ("how", "limit_s", "error", "words"),
    [
        ("killed", 60.0, ChildDied, "was killed while it started"),
        ("exits", 60.0, BadInput, "did not start"),
        ("hangs", 0.2, CallOverran, r"no answer within 0\.2 s"),
    ],
)
def test_a_start_that_is_killed_or_slow_is_an_outage_and_one_that_ends_is_a_bug(
    how: str, limit_s: float, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Child.start(partial(starts_badly, how), limit_s)


def test_calls_do_not_take_the_answers_of_others_and_what_cannot_be_sent_is_a_bug(tmp_path: Path) -> None:
    process = Child.start(partial(served, tmp_path / "said"))
    try:
        with pytest.raises(ChildBug, match="PicklingError"):
            process.call("give", {}, 5.0)
        with pytest.raises(CallOverran):
            process.call("hang", {}, 0.1)
        with pytest.raises(ChildDied, match="in the middle of another call"):
            process.call("give", {}, 5.0)
    finally:
        process.end()
    assert not is_running(process.info) and not (tmp_path / "said").exists()


@pytest.mark.parametrize("when", ["told to leave", "left by itself"])
def test_nothing_that_a_process_started_stays_when_it_ends_well(when: str) -> None:
    process = Child.start(starts_another)
    if when == "left by itself":  # between two calls
        process.call("leave_soon", {}, 5.0)
        eventually(lambda: not is_running(process.info[0]))
    process.end()
    assert not any(map(is_running, process.info))


def starts_another() -> Served:
    def leave_soon() -> None:
        threading.Timer(0.1, os._exit, (0,)).start()

    other = subprocess.Popen(["sleep", "3600"])
    return Served({"leave_soon": leave_soon}, (os.getpid(), other.pid))


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_leaves_or_ends_when_whoever_started_it_is_killed(hangs: bool, tmp_path: Path) -> None:
    said, pids = tmp_path / "said", tmp_path / "pids"
    words = [sys.executable, "-m", "tests.rollout.test_child", str(said), str(pids), *["hangs"] * hangs]
    parent = subprocess.Popen(words, cwd=ROOT)
    eventually(lambda: pids_in(pids))
    parent.kill()
    parent.wait()
    eventually(lambda: not is_running(pids_in(pids)[0]))
    assert said.exists() != hangs


def served_without_end(said: Path, pids: Path) -> Served:
    def hang() -> int:
        """A single call into C: no other thread of the process gets a turn."""
        pids.write_text(str(os.getpid()))
        return sum(range(10**12))

    return dataclasses.replace(served(said), functions={"hang": hang})


def be_parent(said: Path, pids: Path, *how: str) -> None:
    if how:
        child.LEAVE_S = 0.1
    known = Child.start(partial(served_without_end, said, pids))
    if how:
        known.call("hang", {}, 3600.0)
    pids.write_text(str(known.info))
    signal.pause()


if __name__ == "__main__":
    be_parent(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
