"""Runs one command for an owner and ends all of it when the owner is gone.

    supervisor.py [--grace S] [--kill-after S] [--log FILE] [--adoption FILE] [--ahead] -- command...
    supervisor.py --guard PGID [--grace S] [--kill-after S]

The owner is the parent, noticed by the end of file on stdin. When it is gone the command gets `--grace` seconds in
which somebody may adopt it by locking the adoption file (a POSIX lock, which the kernel takes back when its holder
dies); the holder is the owner from then on. Nobody came, or a SIGTERM: SIGTERM to the command's process group, after
`--kill-after` seconds SIGKILL to everything it ever started. A second SIGTERM brings the SIGKILL forward.

stdout gets one line, "PID START_TIME". The command starts only when its owner has written the id under which it was
registered to stdin: what nobody can find must not run. The id replaces the argument `{process_id}`. With `--ahead` it
starts at once, that argument is `-`, and it reads the id from its stdin before it touches anything; the end of that
file means that nobody needs it. The exit status is the command's, 128 + n for signal n.
Standard library only, and run by its path: it starts in 20 ms.
"""

import argparse
import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import time
from typing import NamedTuple, NoReturn

TICK_S = 0.2
PLACEHOLDER = "{process_id}"
SUPERVISOR = "AGRPO_SUPERVISOR"
"""Names the supervisor's pid in its command's environment."""
PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class ProcessStat(NamedTuple):
    """One living process as /proc shows it; `started` is in clock ticks since boot."""

    pid: int
    parent: int
    group: int
    session: int
    started: int


def read_stat(pid: int) -> ProcessStat | None:
    """The process of that id, None when there is none or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may hold blanks and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return ProcessStat(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that had this id at that start time still lives; a re-used id does not count."""
    stat = read_stat(pid)
    return stat is not None and stat.started == started


def family(root: int, group: int | None = None) -> set[int]:
    """Living descendants of `root`, and of the members of `group`; this process itself is left out.

    A group alone is not enough: torchrun starts every rank in a session of its own.
    """
    living = [stat for name in os.listdir("/proc") if name.isdigit() and (stat := read_stat(int(name)))]
    found = {root} | {stat.pid for stat in living if stat.group == group}
    while more := {stat.pid for stat in living if stat.parent in found} - found:
        found |= more
    return found & {stat.pid for stat in living} - {os.getpid()}


def kill_family(root: int, group: int | None = None, within_s: float = 5.0) -> None:
    """SIGKILL for a family until none of it is left; what another user runs stays, or cannot be ended in time."""
    deadline, foreign = time.monotonic() + within_s, set[int]()
    while (pids := family(root, group) - foreign) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                foreign.add(pid)
        time.sleep(0.01)


def kill_group(leader: int, started: int) -> None:
    """SIGKILL for a group and its family; an id that belongs to another process by now is left alone."""
    stat = read_stat(leader)
    if stat is None or stat.started == started:
        kill_family(leader, leader)


def terminate_group(leader: int) -> None:
    """SIGTERM for a group, or for its leader alone before it has made itself one."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            return send(leader, signal.SIGTERM)


class Command:
    """A command that this process starts in a process group of its own."""

    def __init__(self, argv: list[str], ahead: bool) -> None:
        # Orphans of the command come to us instead of init, so kill() finds them wherever they went.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        read_end, self._go = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _exec(read_end, argv, ahead, supervisor)
        os.close(read_end)
        with contextlib.suppress(OSError):  # the child does the same; whoever is first
            os.setpgid(self.pid, self.pid)
        self._status: int | None = None

    def start(self, process_id: bytes) -> None:
        """Let it run; an empty id ends it before it has begun."""
        os.write(self._go, process_id)
        os.close(self._go)

    def exit_status(self) -> int | None:
        """Reap whatever ended; the status counts when it is the command's own."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
        return self._status

    def terminate(self) -> None:
        """SIGTERM to its process group: those outside it are told by their own parents, or killed later."""
        terminate_group(self.pid)

    def kill(self) -> None:
        """SIGKILL to every descendant."""
        kill_family(os.getpid())


class Group:
    """A process group that somebody else started; its leader's end is its end."""

    def __init__(self, pgid: int) -> None:
        self.pgid, leader = pgid, read_stat(pgid)
        self._started = leader.started if leader else -1

    def exit_status(self) -> int | None:
        """0 when the leader is gone."""
        return None if is_alive(self.pgid, self._started) else 0

    def terminate(self) -> None:
        """SIGTERM to the group."""
        terminate_group(self.pgid)

    def kill(self) -> None:
        """SIGKILL to the group."""
        kill_group(self.pgid, self._started)


class Owner:
    """The process that the charge lives for: our parent, later the one that holds the adoption lock."""

    def __init__(self, adoption_path: str | None) -> None:
        self._parent: int | None = os.getppid()
        self.watched = [0]
        self._gone_since: float | None = None
        self._adoption = os.open(adoption_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if adoption_path else None

    def read_stdin(self) -> None:
        """The end of stdin is the end of the parent."""
        if not os.read(0, 64):
            self.watched, self._parent = [], None

    def gone_s(self) -> float:
        """For how many seconds there has been no owner; below 0 while there is one."""
        if self._parent != os.getppid():  # a process that the parent forked may keep the pipe open after its death
            self._parent = None
        if self._parent is not None or not self.refuse_adoption(keep=False):
            self._gone_since = None
            return -1.0
        self._gone_since = self._gone_since or time.monotonic()
        return time.monotonic() - self._gone_since

    def refuse_adoption(self, keep: bool = True) -> bool:
        """Take the adoption lock ourselves (for good, or just to see whether it is free); False: it is taken."""
        if self._adoption is None:
            return True
        try:
            fcntl.lockf(self._adoption, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        if not keep:
            fcntl.lockf(self._adoption, fcntl.LOCK_UN)
        return True


class Requests:
    """Counts SIGTERMs, and wakes `wait` for them and for the end of a child."""

    def __init__(self) -> None:
        self.num_terms = 0
        self._wake, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._count)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)

    def _count(self, *_: object) -> None:
        self.num_terms += 1

    def wait(self, owner: Owner) -> None:
        """Until something happens, at most a tick."""
        ready, _, _ = select.select([self._wake, *owner.watched], [], [], TICK_S)
        if self._wake in ready:
            os.read(self._wake, 512)
        if 0 in ready:
            owner.read_stdin()


def supervise(charge: Command | Group, owner: Owner, requests: Requests, grace_s: float, kill_after_s: float) -> int:
    """Look after the charge until it has ended, by itself or because its time is over; returns its exit status."""
    kill_at: float | None = None
    while (status := charge.exit_status()) is None:
        if kill_at is None:
            # Whoever finds the lock free from here on adopts a dying process: hold it.
            if requests.num_terms:
                owner.refuse_adoption()
            elif not (owner.gone_s() >= grace_s and owner.refuse_adoption()):
                requests.wait(owner)
                continue
            charge.terminate()
            kill_at = time.monotonic() + kill_after_s
        elif time.monotonic() >= kill_at or requests.num_terms > 1:
            charge.kill()
        requests.wait(owner)
    charge.kill()
    return status


def main() -> int:
    """Entry point; see the top of the file."""
    options = _arguments()
    owner = Owner(options.adoption)
    if options.guard is not None:
        return supervise(Group(options.guard), owner, Requests(), options.grace, options.kill_after)
    if options.log:
        os.dup2(os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    command = Command(options.command, options.ahead)
    requests = Requests()  # only now: a SIGTERM that meets the fork before its own handlers would be lost
    _announce(command.pid)
    command.start(process_id := os.read(0, 64).strip())
    status = supervise(command, owner, requests, options.grace if process_id else 0.0, options.kill_after)
    if status != 0:
        ending = f"with exit code {status}" if status > 0 else f"by signal {-status}"
        print(f"[supervisor] {options.command[0]} ended {ending}", file=sys.stderr)
    return status if status >= 0 else 128 - status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run one command and end all of it when its owner is gone.")
    parser.add_argument("--guard", type=int, metavar="PGID", help="guard this process group instead of a command")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds in which an orphan may be adopted")
    parser.add_argument("--kill-after", type=float, default=10.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--log", help="file that output is appended to")
    parser.add_argument("--adoption", metavar="FILE", help="whoever locks this file adopts the command")
    parser.add_argument("--ahead", action="store_true", help="start the command before its id is known")
    parser.add_argument("command", nargs="*", help="the command, after --")
    options = parser.parse_args()
    if (options.guard is None) == (not options.command):
        parser.error("give either --guard PGID or a command after --")
    return options


def _announce(pid: int) -> None:
    stat = read_stat(pid)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{pid} {stat.started if stat else -1}\n".encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _exec(go: int, argv: list[str], ahead: bool, supervisor: int) -> NoReturn:
    """The forked half: its own group, the log as output, then the command, unless `ahead` only when told."""
    try:
        os.setpgid(0, 0)
        # Supervisor and launcher may be killed together. exec keeps this; a fork does not (orphans.py).
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(0)
        os.environ[SUPERVISOR] = str(supervisor)
        for changed in (signal.SIGINT, signal.SIGPIPE):  # Python's own
            signal.signal(changed, signal.SIG_DFL)
        os.dup2(go if ahead else os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        process_id = "-" if ahead else os.read(go, 64).decode()
        if not process_id:
            os._exit(0)
        os.execvp(argv[0], [process_id if argument == PLACEHOLDER else argument for argument in argv])
    except OSError as error:
        os.write(2, f"[supervisor] cannot start {argv[0]!r}: {error}\n".encode())
    os._exit(127)


if __name__ == "__main__":
    sys.exit(main())
