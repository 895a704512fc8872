"""A child in the launcher's books: what it is, how often it was started, what a display shows of it."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agrpo.launch import exits, farewell
from agrpo.launch.child import ChildProcess, ChildSpec, SupervisedProcess, last_lines
from agrpo.launch.spawned import SpawnedProcess
from agrpo.launch.standby import Standby
from agrpo.store import Attempt, processes, servers
from agrpo.store.processes import Kind

State = Literal["running", "restarting", "done", "failed", "stopped"]

_LONGEST_BACKOFF_S = 60.0
_WORDS = 4000


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child as a display shows it."""

    kind: Kind
    index: int
    pid: int
    state: State
    restarts: int
    since: float
    """When it came into this state, in seconds since 1970."""
    url: str | None


@dataclass(slots=True)
class Tracked:
    """A child and its present process."""

    spec: ChildSpec
    process: ChildProcess
    process_id: int
    url: str | None
    """Where it listens now: an adopted server keeps the address it was found at."""
    state: State = "running"
    since: float = field(default_factory=time.time)
    started_at: float = field(default_factory=time.monotonic)
    restarts: int = 0
    in_a_row: int = 0
    restart_at: float = 0.0
    """When a restart is due, by `time.monotonic()`."""
    standby: Standby = field(init=False)

    def __post_init__(self) -> None:
        self.standby = Standby(self.spec)

    def enter(self, state: State) -> None:
        """Change the state now."""
        self.state, self.since = state, time.time()

    def restarted(self, process: ChildProcess, process_id: int) -> None:
        """Note the process that took the dead one's place."""
        self.process, self.process_id, self.url = process, process_id, self.spec.url
        self.started_at = time.monotonic()
        self.restarts += 1
        self.enter("running")

    def living(self) -> list[ChildProcess]:
        """Its process, and the one that stands by."""
        return [*([self.process] if self.state == "running" else []), *self.standby.living()]

    def let_go(self) -> None:
        """Be the owner of none of its processes any longer."""
        for process in (self.process, *self.standby.living()):
            process.let_go()

    def log_end(self) -> str:
        """What it said last, for a message."""
        left = farewell.read(self.spec.log_path)
        if left is not None:
            return f"what it said, in its log {self.spec.log_path}:\n{left.words.strip()[-_WORDS:]}"
        return f"the end of its log {self.spec.log_path}:\n{last_lines(self.spec.log_path)}"

    def refusal(self) -> str | None:
        """What the child itself said about input that it cannot use; None when it said nothing of the kind."""
        left = farewell.read(self.spec.log_path)
        _, marker, said = (left.words if left else last_lines(self.spec.log_path)).rpartition(exits.REFUSAL)
        return said.partition("\n[supervisor]")[0].strip() if marker else None

    def view(self) -> ChildView:
        """What a display shows."""
        spec = self.spec
        return ChildView(spec.kind, spec.index, self.process.pid, self.state, self.restarts, self.since, self.url)


def open_process(spec: ChildSpec, standby: Standby | None = None) -> ChildProcess:
    """Start what a spec describes, up to the point where it waits for its id; a living standby is there already."""
    ready = None if standby is None else standby.take()
    if ready is not None:
        return ready
    if callable(spec.command):
        return SpawnedProcess(spec, spec.command)
    return SupervisedProcess(spec, spec.command)


@contextlib.contextmanager
def giving_up(process: ChildProcess) -> Iterator[None]:
    """Let a process go when taking it into the books fails: what nobody can find must not run."""
    try:
        yield
    except BaseException:
        process.let_go()
        raise


def register(attempt: Attempt, spec: ChildSpec, process: ChildProcess) -> int:
    """Write a new process, and the server that it is, into the store; returns the id of its row."""
    process_id = processes.register(
        attempt,
        kind=spec.kind,
        index=spec.index,
        pid=process.pid,
        pgid=process.pid,
        pid_started=process.started,
        log_path=str(spec.log_path.absolute()),
        settings_hash=spec.settings_hash,
        url=spec.url,
    )
    if spec.url is not None:
        servers.register(attempt, spec.url, spec.index, process_id)
    return process_id


def backoff_s(spec: ChildSpec, num_restarts: int) -> float:
    """How long to wait before the next restart after so many in a row."""
    return min(spec.backoff_s * 2.0**num_restarts, _LONGEST_BACKOFF_S)
