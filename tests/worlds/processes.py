"""Small real processes, and waiting for what they do."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from agrpo.launch.launcher import Launcher
from agrpo.launch.supervisor import read_stat

STUBBORN = "trap '' TERM; echo $BASHPID >> {pids}; while :; do sleep 0.05; done"
"""A shell that ignores SIGTERM and says its pid."""


def eventually(holds: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.01)


def wait_for(launcher: Launcher, kind: str, within_s: float = 30.0) -> None:
    """Wait until the first child of a kind has done its work, restarts included. Raises what ended the run before."""

    def is_done() -> bool:
        launcher.raise_if_failed()
        return any((child.kind, child.index, child.state) == (kind, 0, "done") for child in launcher.children())

    eventually(is_done, within_s)


def stays(holds: Callable[[], object], for_s: float) -> None:
    """Watch that something holds all the time."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert holds()
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    return read_stat(pid) is not None


def pids_in(path: Path) -> list[int]:
    """Process ids that were written to a file, one a line."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def group_of(pgid: int) -> list[int]:
    """Living members of a process group."""
    stats = [read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    return [stat.pid for stat in stats if stat is not None and stat.group == pgid]
