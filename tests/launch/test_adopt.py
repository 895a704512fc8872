"""Two launchers after each other; the first one is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from agrpo.errors import Outage
from agrpo.launch import adopt
from agrpo.launch.attach import attach
from agrpo.launch.launcher import Launcher
from agrpo.launch.supervisor import read_stat
from agrpo.store import Attempt, Store, events, processes, servers
from tests.launch.launching import URL, specs
from tests.worlds.processes import eventually, group_of, is_running, stays

GRACE_S = 20.0

Launch = Callable[..., "Running"]


class Running:
    """A launcher process and what it said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        said = json.loads(process.stdout.readline())
        self.adopted: bool = said["adopted"]
        self.server: int = said["server"]
        self.worker: int = said["worker"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def launch(store: Store, tmp_path: Path) -> Iterator[Launch]:
    started: list[Running] = []

    def run(settings_hash: str = "tiny model", grace_s: float = GRACE_S) -> Running:
        command = [
            sys.executable,
            "-m",
            "tests.launch.launching",
            store.url,
            str(tmp_path),
            str(grace_s),
            settings_hash,
        ]
        started.append(Running(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        return started[-1]

    yield run
    for running in started:
        running.process.terminate()
        running.process.wait(timeout=20)
        running.process.stdout.close()


def test_a_killed_launcher_leaves_nothing_once_the_grace_is_over(launch: Launch) -> None:
    """Fault 17. The worker goes at once, though a grandchild ignores SIGTERM; the server stays for the grace."""
    first = launch(grace_s=4.0)
    first.kill()
    died_at = time.monotonic()
    eventually(lambda: not is_running(first.worker), within_s=3)
    assert is_running(first.server)
    eventually(lambda: not is_running(first.server))
    assert time.monotonic() - died_at > 3.9
    eventually(lambda: group_of(first.server) == [] and group_of(first.worker) == [], within_s=15)


def test_an_adopted_server_outlives_the_grace_until_its_new_launcher_dies(launch: Launch, store: Store) -> None:
    first = launch(grace_s=5.0)
    (before,) = servers.servers(store, "r1")
    first.kill()
    killed_at = time.monotonic()
    second = launch(grace_s=5.0)
    assert (second.adopted, second.server) == (True, first.server)
    assert second.worker != first.worker
    while time.monotonic() - killed_at < 6.5:  # well past the first launcher's grace
        stays(lambda: is_running(second.server), for_s=0.2)
    (after,) = servers.servers(store, "r1")
    assert (after.id, after.process_id, after.state) == (before.id, before.process_id, "healthy")
    assert "adopted" in [event.kind for event in events.events(store, "r1")]
    second.kill()
    stays(lambda: is_running(second.server), for_s=4)
    eventually(lambda: not is_running(second.server))


def test_an_adopted_server_ends_with_its_launcher(launch: Launch, store: Store) -> None:
    first = launch()
    first.kill()
    second = launch()
    assert second.adopted
    second.process.terminate()
    second.process.wait(timeout=20)
    assert group_of(second.server) == [] and group_of(second.worker) == []
    assert processes.live(store, "r1") == []


def test_a_server_with_other_settings_is_replaced(launch: Launch, store: Store) -> None:
    first = launch(settings_hash="tiny model")
    first.kill()
    second = launch(settings_hash="another model")
    assert not second.adopted
    assert group_of(first.server) == []
    assert is_running(second.server)


def test_a_sick_server_is_replaced(launch: Launch, tmp_path: Path) -> None:
    first = launch()
    first.kill()
    (tmp_path / "sick").touch()
    second = launch()
    assert not second.adopted
    assert group_of(first.server) == []


def test_a_server_without_a_supervisor_is_ended_with_all_its_children(launch: Launch) -> None:
    first = launch()
    supervisor = read_stat(first.server).parent
    first.kill()
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: not is_running(first.server), within_s=5)
    assert group_of(first.server) != []  # what it started itself
    second = launch()
    assert not second.adopted
    assert group_of(first.server) == []


def test_the_death_of_an_adopted_server_is_noticed(launch: Launch, store: Store) -> None:
    first = launch()
    first.kill()
    second = launch()
    os.kill(second.server, signal.SIGKILL)
    died_at = time.time()
    eventually(lambda: [event for event in events.events(store, "r1") if event.kind == "restart"])
    event = events.events(store, "r1")[-1]
    assert event.at - died_at < 5.0
    assert "server 0 ended; restart 1 of 3" in event.message
    eventually(lambda: [p.state for p in processes.all(store, "r1") if p.kind == "server"] == ["ended", "running"])


def test_what_another_host_left_is_only_noted(store: Store, attempt: Attempt, tmp_path: Path) -> None:
    """Its pids mean nothing here: this very process has one of them."""
    record = processes.register(attempt, "worker", 0, os.getpid(), os.getpid(), 1, str(tmp_path / "log"))
    other = Attempt(store, "r1", attempt.token)
    adopt.end(other, processes.live(store, "r1"))
    (ended,) = processes.all(store, "r1")
    assert (ended.id, ended.state) == (record, "ended")


def test_only_the_same_server_fits(store: Store, attempt: Attempt, tmp_path: Path) -> None:
    server, worker = specs(1.0, "tiny model")
    registered = {"pid": 1, "pgid": 1, "pid_started": 1, "log_path": "log", "url": URL}
    processes.register(attempt, "server", 0, settings_hash="tiny model", **registered)
    processes.register(attempt, "server", 1, settings_hash="tiny model", **registered)
    processes.register(attempt, "server", 0, settings_hash="another", **registered)
    processes.register(attempt, "worker", 0, **registered)
    records = processes.all(store, "r1")
    assert [adopt.fits(record, server) for record in records] == [True, False, False, False]
    assert not any(adopt.fits(record, worker) for record in records)


def test_an_adoption_that_the_store_refuses_can_be_tried_again(launch: Launch, store: Store, tmp_path: Path) -> None:
    first = launch()
    first.kill()
    attempt = attach(store, "r1", {"seed": 1}, "hash", tmp_path).attempt
    assert attempt is not None
    server, _ = specs(GRACE_S, "tiny model")
    no_room = "BEFORE INSERT ON run_events BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    with Launcher(attempt, tmp_path, healthy=lambda url: True) as launcher:
        with store.write() as connection:
            connection.execute(text(f"CREATE TRIGGER no_room {no_room}"))
        with pytest.raises(Outage, match="has no room left"):
            launcher.adopt(server)
        assert launcher.children() == []
        with store.write() as connection:
            connection.execute(text("DROP TRIGGER no_room"))
        assert launcher.adopt(server)
        assert [child.pid for child in launcher.children()] == [first.server]


def test_there_is_nothing_to_adopt_in_a_new_run(launcher: Launcher) -> None:
    server, _ = specs(1.0, "tiny model")
    assert not launcher.adopt(server)
    launcher.reap_leftovers()
    assert launcher.children() == []


def test_a_clean_end_leaves_nothing_to_adopt(launch: Launch, store: Store, tmp_path: Path) -> None:
    first = launch()
    first.process.terminate()
    first.process.wait(timeout=20)
    attempt = attach(store, "r1", {"seed": 1}, "hash", tmp_path).attempt
    assert attempt is not None
    assert adopt.leftovers(attempt) == []
