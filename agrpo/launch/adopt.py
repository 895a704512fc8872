"""What earlier attempts left on this host: servers worth keeping are adopted, everything else is ended.

A process is known by pid, start time and boot. Its supervisor is its parent; one whose supervisor is gone has nobody to
end it and is never adopted.
"""

import contextlib
import fcntl
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from agrpo.launch import supervisor
from agrpo.launch.child import TERMINATION_S, ChildSpec, adoption_path
from agrpo.store import Attempt, events, processes
from agrpo.store.host import boot_id, host_name
from agrpo.store.processes import ProcessRecord

_LOCK_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Overseer:
    """The supervisor of a process that we did not start, held by a pidfd so that no other process is ever signalled."""

    pidfd: int

    @classmethod
    def of(cls, record: ProcessRecord) -> "Overseer | None":
        """The supervisor of a recorded process; None when either of them is gone."""
        stat = supervisor.read_stat(record.pid)
        if stat is None or stat.started != record.pid_started:
            return None
        try:
            pidfd = os.pidfd_open(stat.parent)
        except ProcessLookupError:
            return None
        # Still the parent afterwards: then the pidfd is its, and not a later process's of the same id.
        if _is_supervisor(stat.parent) and supervisor.read_stat(record.pid) == stat:
            return cls(pidfd)
        os.close(pidfd)
        return None

    def terminate(self) -> None:
        """Order it to end what it looks after."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)

    def is_gone(self) -> bool:
        """Whether it has ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))


class AdoptedProcess:
    """A server that an earlier attempt started; the lock on its adoption file makes us its owner."""

    def __init__(self, record: ProcessRecord, overseer: Overseer, lock: int) -> None:
        self.pid = record.pid
        self.started = record.pid_started
        self._overseer = overseer
        self._lock: int | None = lock

    def release(self, process_id: int) -> None:
        """It runs already."""

    def has_ended(self) -> bool:
        """Its supervisor leaves last; when that was killed, the rest is ended here."""
        if not self._overseer.is_gone():
            return False
        supervisor.kill_group(self.pid, self.started)
        self.let_go()
        return True

    @property
    def exit_code(self) -> int | None:
        """Only a parent learns it; the supervisor wrote it to the log."""
        return None

    def terminate(self) -> None:
        """The supervisor's SIGTERM is the order to end the child."""
        self._overseer.terminate()

    def let_go(self) -> None:
        """Without the lock we own it no longer, and its grace begins."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def adopt_process(record: ProcessRecord) -> AdoptedProcess | None:
    """Become the owner of a process that outlived its launcher; None when it or its supervisor is gone or ending."""
    overseer = Overseer.of(record) if is_here(record) else None
    lock = _lock_adoption(adoption_path(Path(record.log_path))) if overseer else None
    return AdoptedProcess(record, overseer, lock) if overseer and lock is not None else None


def leftovers(attempt: Attempt) -> list[ProcessRecord]:
    """Processes of earlier attempts whose end nobody has recorded."""
    return [record for record in processes.live(attempt.store, attempt.run_id) if record.token < attempt.token]


def fits(record: ProcessRecord, spec: ChildSpec) -> bool:
    """Whether a recorded process is what `spec` would start: the same server with the same settings."""
    same = (record.kind, record.index, record.settings_hash) == (spec.kind, spec.index, spec.settings_hash)
    return same and record.url is not None and record.settings_hash is not None


def is_here(record: ProcessRecord) -> bool:
    """Whether its pid means anything here: this host, this boot."""
    return record.host == host_name() and record.boot_id == boot_id()


def end(attempt: Attempt, records: list[ProcessRecord]) -> None:
    """End recorded processes, all at once: SIGTERM, 10 s, SIGKILL; then note their ends.

    One on another host is out of reach: its token is void, and its own supervisor ends it there.
    """
    near = [record for record in records if is_here(record)]
    here = [record for record in near if supervisor.is_alive(record.pid, record.pid_started)]
    overseers = {record.id: Overseer.of(record) for record in here}
    for record in here:
        overseer = overseers[record.id]
        if overseer is not None:
            overseer.terminate()
        else:
            supervisor.terminate_group(record.pid)
    deadline = time.monotonic() + TERMINATION_S
    while time.monotonic() < deadline and not all(_is_gone(record, overseers[record.id]) for record in here):
        time.sleep(0.05)
    for record in near:  # a process that died with its supervisor may have left children
        supervisor.kill_group(record.pid, record.pid_started)
    for record in here:
        reason = f"left by attempt {record.token}; ended by attempt {attempt.token}"
        processes.ended(attempt, record.id, None, reason)
        events.add(attempt, "reaped", f"{record.kind} {record.index}: {reason}", process_id=record.id, pid=record.pid)
    for record in records:
        if record not in here:
            processes.ended(attempt, record.id, None, f"gone, or out of reach on host {record.host}")


def _is_supervisor(pid: int) -> bool:
    """Whether a process runs supervisor.py: init, or a script that spawned a worker, must not get its signals."""
    try:
        return Path(supervisor.__file__).name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _is_gone(record: ProcessRecord, overseer: Overseer | None) -> bool:
    return overseer.is_gone() if overseer else not supervisor.is_alive(record.pid, record.pid_started)


def _lock_adoption(path: Path) -> int | None:
    """The lock on an adoption file; None when there is no such file or somebody else keeps the lock.

    The supervisor holds it for an instant now and then to see whether it is free, so one refusal is no answer.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    deadline = time.monotonic() + _LOCK_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        time.sleep(0.02)
    os.close(lock)
    return None
