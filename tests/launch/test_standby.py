"""A second process, loaded and waiting, takes over when a child dies; without it a child starts as ever."""

import os
import signal
import subprocess
from pathlib import Path

from agrpo.launch.child import ChildSpec, open_supervisor
from agrpo.launch.launcher import Launcher
from agrpo.launch.supervisor import read_stat
from agrpo.store import processes
from tests.worlds.processes import eventually, is_running, pids_in

WORKER = """
if [ $0 = - ]; then
    echo $$ >> {waiting}
    read id
    [ -n "$id" ] || exit 0
else
    id=$0
fi
echo "$$ works as $id"
sleep 60
"""
"""A child that notes its pid while it waits for an id on stdin, and says under which id it works."""


class World:
    """One such child in a launcher, with a standby unless it is told otherwise."""

    def __init__(self, launcher: Launcher, folder: Path, standby_after_s: float | None = 0.0) -> None:
        self.waiting, self.launcher, self.store = folder / "waiting", launcher, launcher.attempt.store
        command = ("bash", "-c", WORKER.format(waiting=self.waiting), "{process_id}")
        spec = ChildSpec("worker", 0, command, Path("log"), backoff_s=0.05, standby_after_s=standby_after_s)
        launcher.start(spec)
        self.log = folder / "log"
        eventually(lambda: "works as" in self.log.read_text())

    def standby(self, number: int = 0) -> int:
        """Pid of the first, or a later, process that has waited."""
        eventually(lambda: len(pids_in(self.waiting)) > number)
        return pids_in(self.waiting)[number]

    def kill_worker(self) -> processes.ProcessRecord:
        """Kill the child; the one that took its place."""
        (killed,) = processes.live(self.store, "r1")
        os.kill(killed.pid, signal.SIGKILL)
        eventually(lambda: [p.id for p in processes.live(self.store, "r1")] not in ([], [killed.id]))
        return processes.live(self.store, "r1")[0]

    def wait_for(self, process: processes.ProcessRecord) -> None:
        """Wait until it has said under which id it works."""
        eventually(lambda: f"{process.pid} works as {process.id}\n" in self.log.read_text())


def test_the_waiting_process_becomes_the_worker_under_its_own_id(launcher: Launcher, tmp_path: Path) -> None:
    world = World(launcher, tmp_path)
    for number in range(2):  # the next one is loaded when its predecessor has become the child
        waiting = world.standby(number)
        took_over = world.kill_worker()
        assert (took_over.pid, took_over.pgid, took_over.restarts) == (waiting, waiting, number + 1)
        world.wait_for(took_over)
    assert launcher.children()[0].restarts == 2


def test_a_dead_standby_is_no_reason_to_fail(launcher: Launcher, tmp_path: Path) -> None:
    world = World(launcher, tmp_path)
    dead = world.standby()
    os.kill(dead, signal.SIGKILL)
    eventually(lambda: not is_running(dead))
    took_over = world.kill_worker()
    assert took_over.pid != dead
    world.wait_for(took_over)


def test_a_standby_whose_supervisor_was_killed_ends_by_itself(launcher: Launcher, tmp_path: Path) -> None:
    world = World(launcher, tmp_path)
    stat = read_stat(world.standby())
    assert stat is not None
    os.kill(stat.parent, signal.SIGKILL)
    eventually(lambda: not is_running(stat.pid))


def test_no_standby_is_started_unless_wanted_and_none_is_left(launcher: Launcher, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with Launcher(launcher.attempt, plain) as other:
        world = World(other, plain, standby_after_s=None)
        world.kill_worker()
        assert pids_in(world.waiting) == []
    with Launcher(launcher.attempt, tmp_path) as other:
        waiting = World(other, tmp_path).standby()
        assert is_running(waiting)
    assert not is_running(waiting)


def test_a_standby_ends_with_its_owner(tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    command = ["bash", "-c", WORKER.format(waiting=waiting), "{process_id}"]
    owner: subprocess.Popen[bytes] = open_supervisor(["--ahead", "--log", str(tmp_path / "log"), "--", *command])
    assert owner.stdin is not None
    eventually(lambda: pids_in(waiting))
    owner.stdin.close()
    assert owner.wait(10) == 128 + signal.SIGTERM or owner.returncode == 0
    assert not is_running(pids_in(waiting)[0])
    assert "works as" not in (tmp_path / "log").read_text()
