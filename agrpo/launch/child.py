"""A child: what to start, and the process under its supervisor."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agrpo.errors import ChildFailed
from agrpo.launch import farewell, supervisor
from agrpo.store.processes import Kind

TERMINATION_S = 10.0
"""From SIGTERM to SIGKILL."""
_AFTER_KILL_S = 5.0
_SOME_RANK = 1
_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start and how to look after it."""

    kind: Kind
    index: int
    command: tuple[str, ...] | Callable[[int], None]
    """Arguments, `{process_id}` standing for the id of the process's row; or a picklable function of that id."""
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Merged over this process's environment."""
    cwd: Path | None = None
    orphan_grace_s: float = 0.0
    """How long it outlives a dead launcher, so that the next attempt can adopt it."""
    settings_hash: str | None = None
    """Only a process with the same hash (model and settings) is adopted."""
    url: str | None = None
    """Where it listens; such a child never ends by itself, so any end is a failure."""
    restart_limit: int = 3
    """Restarts in a row; one that lived `steady_after_s` starts the count again."""
    steady_after_s: float = 600.0
    backoff_s: float = 1.0
    """Wait before the first restart, doubled for each further one up to a minute."""
    silence_limit_s: float | None = None
    """A loop of it that has said so once must say again within this time that it is alive; None: none has to."""
    optional: bool = False
    """When it is given up, the run goes on without it."""
    standby_after_s: float | None = None
    """Keep a second process of it ready (standby.py) once it has run so long; None: none."""

    @property
    def name(self) -> str:
        """Kind and index, for messages."""
        return f"{self.kind} {self.index}"


class ChildProcess(Protocol):
    """A running child, however it came to us."""

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group."""

    @property
    def started(self) -> int:
        """Its start time in clock ticks since boot."""

    def release(self, process_id: int) -> None:
        """Let it run, now that it is registered under this id."""

    def has_ended(self) -> bool:
        """Whether it and everything it started is gone."""

    @property
    def exit_code(self) -> int | None:
        """After the end: the exit code, negative for a signal; None when nobody knows."""

    def terminate(self) -> None:
        """SIGTERM now and SIGKILL later; called again, SIGKILL at once."""

    def let_go(self) -> None:
        """Be its owner no longer: it is ended, after its grace, unless somebody adopts it."""


class SupervisedProcess:
    """A command under a supervisor that we started."""

    def __init__(self, spec: ChildSpec, command: tuple[str, ...], ahead: bool = False) -> None:
        """The command starts when it is released, or `ahead` of that and then reads its id from stdin."""
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        options = ["--log", str(spec.log_path.absolute()), "--kill-after", str(TERMINATION_S)]
        options += ["--ahead"] if ahead else []
        if spec.orphan_grace_s > 0:
            path = adoption_path(spec.log_path.absolute())
            options += ["--grace", str(spec.orphan_grace_s), "--adoption", str(path)]
        self._is_released = False
        self._log_path = spec.log_path.absolute()
        env = {**spec.env, farewell.VARIABLE: str(farewell.path_for(self._log_path))}
        self._supervisor = open_supervisor([*options, "--", *command], env, spec.cwd)
        assert self._supervisor.stdout is not None
        announced = self._supervisor.stdout.readline().split()
        self._supervisor.stdout.close()
        if len(announced) != 2:
            raise ChildFailed(
                f"{spec.name}: its supervisor ended with exit code {self._supervisor.wait()} before it started "
                f"the command; its last lines:\n{last_lines(spec.log_path)}"
            )
        self.pid, self.started = int(announced[0]), int(announced[1])

    def release(self, process_id: int) -> None:
        """Tell the supervisor the id, which starts the command."""
        self._is_released = True
        farewell.forget(self._log_path)
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a dead supervisor is noticed by has_ended
            self._supervisor.stdin.write(f"{process_id}\n".encode())
            self._supervisor.stdin.flush()

    def has_ended(self) -> bool:
        """A supervisor leaves last; when it was killed, what it looked after is ended here."""
        status = self._supervisor.poll()
        if status is not None and status < 0:
            supervisor.kill_group(self.pid, self.started)
        return status is not None

    @property
    def exit_code(self) -> int | None:
        """As the supervisor passed it on; torchrun's 1 is what its first rank ended with."""
        status = self._supervisor.poll()
        if status == _SOME_RANK and (left := farewell.read(self._log_path)) is not None:
            return left.code
        return status if status is None or status <= 128 else 128 - status

    def terminate(self) -> None:
        """The supervisor's SIGTERM is the order to end the child; while it waits for the id it reads nothing else."""
        if not self._is_released:
            self.let_go()
        self._supervisor.terminate()

    def let_go(self) -> None:
        """Closing stdin is how an owner goes."""
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._supervisor.stdin.close()


def open_supervisor(
    options: list[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start supervisor.py by its path, isolated from the user's site-packages and PYTHON variables."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )


def adoption_path(log_path: Path) -> Path:
    """The file whose lock makes its holder the owner of an orphan."""
    return log_path.with_name(log_path.name + ".owner")


def last_lines(log_path: Path, num_lines: int = 20) -> str:
    """The end of a log, as much as helps to see why its process ended."""
    try:
        with log_path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "(it wrote no log)"
    return "\n".join(text.splitlines()[-num_lines:])


def end_all(ending: list[ChildProcess], timeout_s: float) -> None:
    """End processes together and wait until nothing is left: SIGTERM, after `timeout_s` SIGKILL."""
    for wait_s in (timeout_s, _AFTER_KILL_S):
        for process in ending:
            process.terminate()
        deadline = time.monotonic() + wait_s
        while (ending := [process for process in ending if not process.has_ended()]) and time.monotonic() < deadline:
            time.sleep(0.02)
