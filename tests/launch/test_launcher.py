import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from agrpo.errors import BadInput, ChildFailed, LeaseHeld, LeaseLost, Outage, RunStopped
from agrpo.launch import exits
from agrpo.launch.child import ChildSpec
from agrpo.launch.launcher import Launcher
from agrpo.launch.supervisor import read_stat
from agrpo.store import Attempt, Store, events, leases, processes, servers
from tests.worlds.processes import STUBBORN, eventually, group_of, is_running, pids_in, wait_for

SLEEP = "sleep 60"


def shell(script: str, kind: processes.Kind = "worker", index: int = 0, **settings: object) -> ChildSpec:
    command = ("bash", "-c", script, "{process_id}")
    settings = {"backoff_s": 0.05, "log_path": Path(f"{kind}-{index}.log"), **settings}
    return ChildSpec(kind, index, command, **settings)  # type: ignore[arg-type]


def pid_of(launcher: Launcher, kind: processes.Kind = "worker") -> int:
    return next(child.pid for child in launcher.children() if child.kind == kind)


def test_a_child_is_registered_before_it_runs_and_done_when_it_says_so(launcher: Launcher, tmp_path: Path) -> None:
    process_id = launcher.start(shell("echo I am $0 and $COLOUR", env={"COLOUR": "green"}))
    wait_for(launcher, "worker", within_s=10)
    assert (tmp_path / "worker-0.log").read_text() == f"I am {process_id} and green\n"
    (record,) = processes.all(launcher.attempt.store, "r1")
    assert (record.id, record.kind, record.state, record.exit_code) == (process_id, "worker", "ended", 0)
    (child,) = launcher.children()
    assert (child.state, child.restarts) == ("done", 0)


def test_a_killed_worker_is_started_again_with_the_reason_in_the_events(launcher: Launcher, store: Store) -> None:
    """Fault 4: the consumer must not wait for ever on a dead producer."""
    first = launcher.start(shell(f"echo working; {SLEEP}"))
    killed = pid_of(launcher)
    eventually(lambda: "working" in (launcher.run_dir / "worker-0.log").read_text())
    os.kill(killed, signal.SIGKILL)
    died_at = time.time()
    eventually(lambda: any(event.kind == "restart" for event in events.events(store, "r1")))
    (event,) = [event for event in events.events(store, "r1") if event.kind == "restart"]
    assert event.at - died_at < 5.0
    assert event.message == "worker 0 was ended by signal 9; restart 1 of 3 in 0.05 s"
    assert "working" in event.detail["log"]
    eventually(lambda: launcher.children()[0].state == "running")
    assert pid_of(launcher) != killed
    assert [(p.id == first, p.state, p.exit_code, p.restarts) for p in processes.all(store, "r1")] == [
        (True, "ended", -9, 0),
        (False, "running", None, 1),
    ]


def test_an_outage_is_retried_until_it_is_over(launcher: Launcher, tmp_path: Path) -> None:
    launcher.start(shell(f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) = 3 ] || exit {exits.OUTAGE}"))
    wait_for(launcher, "worker", within_s=10)
    assert launcher.children()[0].restarts == 2


def test_a_child_that_keeps_dying_ends_the_run_with_its_last_words(launcher: Launcher) -> None:
    launcher.start(shell("seq 1 30; echo out of memory; exit 1", restart_limit=2))
    with pytest.raises(ChildFailed) as failure:
        wait_for(launcher, "worker", within_s=20)
    reason, *lines = str(failure.value).splitlines()
    assert reason.startswith("worker 0 ended with exit code 1 after 2 restarts; the end of its log /")
    assert lines[:2] == ["13", "14"]
    assert "out of memory" in lines
    with pytest.raises(ChildFailed):
        launcher.raise_if_failed()
    assert launcher.children()[0].state == "failed"


def test_a_child_that_lived_long_enough_has_all_its_restarts_again(launcher: Launcher, tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) = 4 ] || exit 1"
    launcher.start(shell(script, restart_limit=1, steady_after_s=0.0))
    wait_for(launcher, "worker", within_s=10)


@pytest.mark.parametrize("code", [exits.BUG, exits.BAD_INPUT, 127])
def test_what_would_only_repeat_is_not_repeated(launcher: Launcher, store: Store, code: int) -> None:
    launcher.start(shell(f"echo 'ValueError: no such thing'; exit {code}"))
    with pytest.raises(ChildFailed, match=f"exit code {code} .*\n.*ValueError: no such thing"):
        wait_for(launcher, "worker", within_s=10)
    assert len(processes.all(store, "r1")) == 1


def test_a_command_that_cannot_be_started_is_named(launcher: Launcher) -> None:
    launcher.start(ChildSpec("trainer", 0, ("/no/such/program",), Path("trainer.log")))
    with pytest.raises(ChildFailed, match="cannot start '/no/such/program'"):
        wait_for(launcher, "trainer", within_s=10)


def test_a_server_that_ends_is_started_again_even_with_code_0(launcher: Launcher, store: Store, tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) = 1 ] || {SLEEP}"
    launcher.start(shell(script, kind="server", url="http://127.0.0.1:1"))
    (server,) = servers.servers(store, "r1")
    servers.confirm_version(launcher.attempt, server.id, 3)
    eventually(lambda: launcher.children()[0].restarts == 1)
    (again,) = servers.servers(store, "r1")
    assert (again.state, again.weight_version) == ("starting", None)
    assert again.process_id != server.process_id


def test_stop_leaves_nothing_also_of_children_that_ignore_sigterm(attempt: Attempt, tmp_path: Path) -> None:
    """Fault 17, the orderly half: one group ignores SIGTERM, a grandchild of another has a session of its own."""
    pids = tmp_path / "pids"
    stubborn = STUBBORN.format(pids=pids)
    with Launcher(attempt, tmp_path) as launcher:
        launcher.start(shell(stubborn))
        launcher.start(
            shell(
                f"echo '{stubborn.replace(chr(39), chr(34))}' > {tmp_path}/s; setsid bash {tmp_path}/s & wait",
                kind="trainer",
            )
        )
        launcher.start(shell(SLEEP, kind="server", url="http://127.0.0.1:1", orphan_grace_s=60))
        groups = [child.pid for child in launcher.children()]
        eventually(lambda: len(pids_in(pids)) == 2)
        begun = time.monotonic()
        launcher.stop(timeout_s=1.0)
        assert time.monotonic() - begun < 6.0
    assert [group_of(group) for group in groups] == [[], [], []]
    assert not any(map(is_running, pids_in(pids)))
    assert {child.state for child in launcher.children()} == {"stopped"}
    assert processes.live(attempt.store, "r1") == []
    with pytest.raises(ChildFailed, match="the launcher has been stopped"):
        launcher.start(shell(SLEEP, index=1))


def test_nothing_is_restarted_while_stopping(attempt: Attempt, tmp_path: Path) -> None:
    with Launcher(attempt, tmp_path) as launcher:
        launcher.start(shell("exit 1", backoff_s=30.0))
        eventually(lambda: launcher.children()[0].state == "restarting")
    assert [record.exit_code for record in processes.all(attempt.store, "r1")] == [1]


def test_a_killed_supervisor_takes_its_child_with_it(launcher: Launcher) -> None:
    launcher.start(shell(f"({SLEEP}) & {SLEEP}"))
    pid = pid_of(launcher)
    eventually(lambda: len(group_of(pid)) >= 2)
    stat = read_stat(pid)
    assert stat is not None
    os.kill(stat.parent, signal.SIGKILL)
    eventually(lambda: launcher.children()[0].restarts == 1)
    assert group_of(pid) == []


def test_the_lease_is_renewed(attempt: Attempt, tmp_path: Path) -> None:
    with Launcher(attempt, tmp_path, lease_ttl_s=1.0, renew_every_s=0.1):
        first = leases.attempts(attempt.store, "r1")[0].expires_at
        eventually(lambda: leases.attempts(attempt.store, "r1")[0].expires_at > first + 1.0)


def test_a_lost_lease_stops_the_children_but_not_what_may_be_adopted(
    store: Store, attempt: Attempt, tmp_path: Path
) -> None:
    with Launcher(attempt, tmp_path, renew_every_s=0.1) as launcher:
        launcher.start(shell(SLEEP))
        launcher.start(shell(SLEEP, kind="server", url="http://127.0.0.1:1", orphan_grace_s=4.0))
        worker, server = pid_of(launcher, "worker"), pid_of(launcher, "server")
        take_over(store, attempt)
        with pytest.raises(LeaseLost):
            wait_for(launcher, "worker", within_s=10)
        eventually(lambda: not is_running(worker))
        with pytest.raises(LeaseLost):
            launcher.start(shell(SLEEP, index=1))
    assert is_running(server)
    eventually(lambda: not is_running(server))
    assert [record.state for record in processes.all(store, "r1")] == [
        "running",
        "running",
    ]  # the new attempt's to note


def test_a_lease_lost_during_a_pause_is_noticed_before_anything_is_touched(
    store: Store, attempt: Attempt, tmp_path: Path
) -> None:
    """A launcher that was suspended until its lease ran out goes straight into stop()."""
    with Launcher(attempt, tmp_path, lease_ttl_s=0.0, renew_every_s=60.0) as launcher:
        launcher.start(shell(SLEEP, kind="server", url="http://127.0.0.1:1", orphan_grace_s=3.0))
        server = pid_of(launcher, "server")
        take_over(store, attempt)
        launcher.stop()
        assert is_running(server)
        with pytest.raises(LeaseLost):
            launcher.raise_if_failed()
    eventually(lambda: not is_running(server))


def test_nothing_is_started_after_a_takeover(store: Store, attempt: Attempt, tmp_path: Path) -> None:
    with Launcher(attempt, tmp_path, renew_every_s=60.0) as launcher:
        take_over(store, attempt)
        with pytest.raises(LeaseLost):
            launcher.start(shell(f"touch {tmp_path}/ran"))
    assert processes.all(store, "r1") == []
    assert not (tmp_path / "ran").exists()


def test_a_child_that_sees_the_takeover_first_is_believed_after_a_look(
    store: Store, attempt: Attempt, tmp_path: Path
) -> None:
    with Launcher(attempt, tmp_path, renew_every_s=60.0) as launcher:
        launcher.start(shell(f"until [ -e {tmp_path}/lost ]; do sleep 0.02; done; exit {exits.LEASE_LOST}"))
        take_over(store, attempt)
        (tmp_path / "lost").touch()
        with pytest.raises(LeaseLost):
            wait_for(launcher, "worker", within_s=10)


def test_a_child_that_says_so_wrongly_fails(launcher: Launcher) -> None:
    launcher.start(shell(f"exit {exits.LEASE_LOST}"))
    with pytest.raises(ChildFailed, match="the lease is lost"):
        wait_for(launcher, "worker", within_s=10)


def test_wait_healthy_follows_the_server_through_a_restart(attempt: Attempt, tmp_path: Path) -> None:
    up = tmp_path / "up"
    script = f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) = 2 ] || exit 1; touch {up}; {SLEEP}"
    with Launcher(attempt, tmp_path, healthy=lambda url: up.exists()) as launcher:
        launcher.start(shell(script, kind="server", url="http://127.0.0.1:1"))
        launcher.wait_healthy(0, timeout_s=10)
        assert launcher.children()[0].restarts == 1
        assert [server.state for server in servers.servers(attempt.store, "r1")] == ["healthy"]
    assert [server.state for server in servers.servers(attempt.store, "r1")] == ["lost"]


def test_a_server_that_does_not_come_up_in_time_shows_its_log(attempt: Attempt, tmp_path: Path) -> None:
    with Launcher(attempt, tmp_path, healthy=lambda url: False) as launcher:
        launcher.start(shell(f"echo loading; {SLEEP}", kind="server", url="http://127.0.0.1:1"))
        eventually(lambda: "loading" in (tmp_path / "server-0.log").read_text())
        with pytest.raises(Outage, match=r"server 0 does not answer at http://127\.0\.0\.1:1 after 0\.5 s;.*\nloading"):
            launcher.wait_healthy(0, timeout_s=0.5)


def test_a_hung_child_is_ended_and_started_again(launcher: Launcher, store: Store) -> None:
    process_id = launcher.start(shell(SLEEP))
    launcher.end_hung(process_id, "has not answered for 9 s")
    eventually(lambda: launcher.children()[0].restarts == 1)
    assert [event.message for event in events.events(store, "r1") if event.kind == "hung"] == [
        "worker 0 has not answered for 9 s"
    ]


def test_a_child_that_is_not_there_and_one_that_is_already_are_named(launcher: Launcher) -> None:
    launcher.start(shell(SLEEP))
    with pytest.raises(BadInput, match="there is no server 0"):
        launcher.wait_healthy(0, 0.1)
    with pytest.raises(BadInput, match="worker 0 has been started already"):
        launcher.start(shell(SLEEP))


def test_a_bug_in_the_supervision_is_not_swallowed(launcher: Launcher) -> None:
    launcher.start(shell("exit 1", backoff_s="soon"))
    with pytest.raises(TypeError):
        wait_for(launcher, "worker", within_s=10)


def take_over(store: Store, attempt: Attempt) -> Attempt:
    """What another host does when this one seems dead: the old attempt's time is over."""
    while True:
        leases.renew(attempt, ttl_s=-1.0)
        with contextlib.suppress(LeaseHeld):  # the lease's thread was quicker
            return leases.acquire(store, "r1", leases.this_process())


def test_who_waits_for_a_server_may_be_called_away(attempt: Attempt, tmp_path: Path) -> None:
    def leave() -> None:
        raise RunStopped("asked to stop")

    with Launcher(attempt, tmp_path, healthy=lambda url: False) as launcher:
        launcher.start(shell(SLEEP, kind="server", url="http://127.0.0.1:1"))
        with pytest.raises(RunStopped):
            launcher.wait_healthy(0, timeout_s=30, meanwhile=leave)
