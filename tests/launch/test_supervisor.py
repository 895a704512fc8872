import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agrpo.launch import supervisor
from tests.worlds.processes import STUBBORN, eventually, group_of, is_running, pids_in, stays

Start = Callable[..., subprocess.Popen[bytes]]

OWNER = f"""
import os, subprocess, sys, time
supervisor = subprocess.Popen([sys.executable, "-I", "-S", {supervisor.__file__!r}, "--", "sleep", "60"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
child = int(supervisor.stdout.readline().split()[0])
supervisor.stdin.write(b"1\\n"); supervisor.stdin.flush()"""
"""A launcher with one supervised `sleep`, up to where the two know of each other."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a supervisor; the test ends it by closing its stdin, as a dying launcher would."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*options: str, process_id: bytes = b"7\n") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", supervisor.__file__, "--log", str(tmp_path / "log"), *options]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        process.stdin.write(process_id)
        process.stdin.flush()
        return process

    yield run
    for process in started:
        process.stdin.close()
        process.stdout.close()
        for _ in range(2):
            process.terminate()
        process.wait(timeout=10)


def announced(process: subprocess.Popen[bytes]) -> int:
    pid, started = map(int, process.stdout.readline().split())
    stat = supervisor.read_stat(pid)
    assert stat is None or stat.started == started
    return pid


def shell(script: str) -> tuple[str, ...]:
    return ("--", "bash", "-c", script)


def test_the_command_gets_its_id_and_its_output_goes_to_the_log(start: Start, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    process = start("--", "bash", "-c", 'echo "id $0 $1"; echo oops >&2', "{process_id}", "--")
    assert process.wait(timeout=10) == 0
    assert (tmp_path / "log").read_text() == "before\nid 7 --\noops\n"


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 128 + 9), ("exit 75", 75)])
def test_the_exit_status_is_the_commands(start: Start, script: str, status: int) -> None:
    assert start(*shell(script)).wait(timeout=10) == status


def test_a_command_that_does_not_exist_is_named(start: Start, tmp_path: Path) -> None:
    assert start("--", "/no/such/program").wait(timeout=10) == 127
    assert "cannot start '/no/such/program'" in (tmp_path / "log").read_text()


def test_a_command_that_was_never_registered_never_runs(start: Start, tmp_path: Path) -> None:
    process = start("--grace", "60", *shell(f"touch {tmp_path}/ran"), process_id=b"")
    pid = announced(process)
    process.stdin.close()
    process.wait(timeout=10)
    assert not is_running(pid)
    assert not (tmp_path / "ran").exists()


def test_a_dead_owner_ends_the_command_and_all_it_started(start: Start, tmp_path: Path) -> None:
    """One grandchild ignores SIGTERM, another one has left the process group as torchrun's ranks do."""
    pids = tmp_path / "pids"
    stubborn = STUBBORN.format(pids=pids)
    process = start(
        "--kill-after", "0.5", *shell(f"({stubborn}) & setsid bash -c '{stubborn.replace(chr(39), chr(34))}' & wait")
    )
    pid = announced(process)
    eventually(lambda: len(pids_in(pids)) == 2)
    process.stdin.close()
    process.wait(timeout=10)
    assert group_of(pid) == []
    assert not any(map(is_running, pids_in(pids)))


def test_sigterm_comes_before_sigkill(start: Start, tmp_path: Path) -> None:
    process = start(
        *shell(f"trap 'echo bye > {tmp_path}/bye; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done")
    )
    eventually((tmp_path / "up").exists)
    process.stdin.close()
    assert process.wait(timeout=5) == 0
    assert (tmp_path / "bye").exists()


def test_what_a_dead_command_leaves_is_ended_at_once(start: Start, tmp_path: Path) -> None:
    """A killed API server leaves its engine behind, with the GPU's memory."""
    pids = tmp_path / "pids"
    process = start("--kill-after", "60", *shell(f"({STUBBORN.format(pids=pids)}) & sleep 60"))
    pid = announced(process)
    eventually(lambda: pids_in(pids))
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=5) == 128 + 9
    assert not is_running(pids_in(pids)[0])


def test_a_second_sigterm_does_not_wait(start: Start, tmp_path: Path) -> None:
    process = start("--kill-after", "60", *shell(STUBBORN.format(pids=tmp_path / "pids")))
    pid = announced(process)
    eventually(lambda: pids_in(tmp_path / "pids"))
    process.terminate()
    stays(lambda: is_running(pid), for_s=0.3)
    process.terminate()
    assert process.wait(timeout=5) == 128 + 9


def test_an_orphan_is_ended_after_its_grace(start: Start) -> None:
    process = start("--grace", "0.8", "--", "sleep", "60")
    pid = announced(process)
    process.stdin.close()
    stays(lambda: is_running(pid), for_s=0.5)
    process.wait(timeout=5)
    assert not is_running(pid)


def test_an_order_to_end_knows_no_grace(start: Start) -> None:
    process = start("--grace", "60", "--", "sleep", "60")
    announced(process)
    process.terminate()
    assert process.wait(timeout=5) == 128 + 15


def test_whoever_holds_the_lock_owns_the_orphan(start: Start, tmp_path: Path) -> None:
    adoption = tmp_path / "owner"
    process = start("--grace", "0.5", "--adoption", str(adoption), "--", "sleep", "60")
    pid = announced(process)
    eventually(adoption.exists)
    adopter = adoption.open("r+")
    fcntl.lockf(adopter, fcntl.LOCK_EX)
    process.stdin.close()
    stays(lambda: is_running(pid), for_s=1.2)
    adopter.close()
    stays(lambda: is_running(pid), for_s=0.2)
    process.wait(timeout=5)
    assert not is_running(pid)


def test_a_dying_orphan_cannot_be_adopted(start: Start, tmp_path: Path) -> None:
    adoption, pids = tmp_path / "owner", tmp_path / "pids"
    process = start("--kill-after", "1.5", "--adoption", str(adoption), *shell(STUBBORN.format(pids=pids)))
    eventually(lambda: pids_in(pids))
    process.stdin.close()
    with adoption.open("r+") as adopter:

        def is_refused() -> bool:
            try:
                fcntl.lockf(adopter, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            fcntl.lockf(adopter, fcntl.LOCK_UN)
            return False

        eventually(is_refused)
        stays(is_refused, for_s=0.5)


def test_a_forked_copy_of_the_pipe_does_not_hide_the_owners_death(tmp_path: Path) -> None:
    """datasets' workers are forked and inherit every pipe of the launcher, close-on-exec or not."""
    pids = tmp_path / "pids"
    launcher = f"""{OWNER}
copy = os.fork()
if copy: open({str(pids)!r}, "w").write(f"{{supervisor.pid}} {{child}} {{copy}}")
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", launcher])
    eventually(lambda: len(pids_in(pids)) == 3)
    supervisor_pid, child, copy = pids_in(pids)
    process.kill()
    process.wait()
    eventually(lambda: not is_running(child) and not is_running(supervisor_pid), within_s=5)
    assert is_running(copy)
    os.kill(copy, signal.SIGKILL)


def test_a_guard_ends_a_group_that_somebody_else_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"({STUBBORN.format(pids=pids)}) & wait"
    leader = subprocess.Popen(["bash", "-c", script], process_group=0)
    eventually(lambda: pids_in(pids))
    command = [sys.executable, "-I", "-S", supervisor.__file__, "--guard", str(leader.pid), "--kill-after", "0.5"]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    stays(lambda: guard.poll() is None, for_s=0.5)
    guard.stdin.close()
    assert leader.wait(timeout=5) == -signal.SIGTERM
    assert guard.wait(timeout=5) == 0
    assert group_of(leader.pid) == []


def test_a_guard_leaves_with_its_group(tmp_path: Path) -> None:
    leader = subprocess.Popen(["sleep", "0.3"], process_group=0)
    command = [sys.executable, "-I", "-S", supervisor.__file__, "--guard", str(leader.pid)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    leader.wait()
    assert guard.wait(timeout=5) == 0
    guard.stdin.close()


def test_ctrl_c_does_not_reach_a_supervisor(start: Start) -> None:
    process = start("--", "sleep", "60")
    pid = announced(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    stays(lambda: is_running(pid) and process.poll() is None, for_s=0.3)


def test_a_reused_pid_is_not_the_process(tmp_path: Path) -> None:
    stat = supervisor.read_stat(os.getpid())
    assert stat is not None
    assert supervisor.is_alive(os.getpid(), stat.started)
    assert not supervisor.is_alive(os.getpid(), stat.started - 1)
    other = subprocess.Popen(["sleep", "60"], process_group=0)
    supervisor.kill_group(other.pid, started=1)
    assert other.poll() is None
    other_stat = supervisor.read_stat(other.pid)
    assert other_stat is not None
    supervisor.kill_group(other.pid, other_stat.started)
    assert other.wait(timeout=5) == -signal.SIGKILL


def test_what_runs_as_another_user_stays_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    other = subprocess.Popen(["sleep", "60"], process_group=0)
    with monkeypatch.context() as patched:
        for name in ("kill", "killpg"):
            patched.setattr(os, name, refuse)
        begin = time.monotonic()
        supervisor.terminate_group(other.pid)
        supervisor.kill_family(other.pid, within_s=60.0)
    assert time.monotonic() - begin < 30 and other.poll() is None
    other.kill()
    other.wait()


def test_the_command_ends_with_a_supervisor_that_is_killed_together_with_its_owner(tmp_path: Path) -> None:
    """Nobody is left then who could end it. A server that is adopted keeps its supervisor, and so lives on."""
    pids = tmp_path / "pids"
    launcher = f"""{OWNER}
open({str(pids)!r}, "w").write(f"{{supervisor.pid}} {{child}}")
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", launcher])
    eventually(lambda: len(pids_in(pids)) == 2)
    supervisor_pid, child = pids_in(pids)
    eventually(lambda: Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"sleep"))
    os.kill(supervisor_pid, signal.SIGSTOP)  # it must not do it itself
    process.kill()
    os.kill(supervisor_pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: not is_running(child), within_s=5)
