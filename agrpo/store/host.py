"""Who a process is: a pid alone is re-used, so its start time and the boot go with it."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a host, distinct from every earlier one with the same pid."""

    host: str
    pid: int
    pid_started: int
    """Clock ticks since boot."""
    boot_id: str


def this_process() -> Holder:
    """The calling process."""
    started = process_started(os.getpid())
    assert started is not None
    return Holder(host_name(), os.getpid(), started, boot_id())


def host_name() -> str:
    """This machine's name."""
    return socket.gethostname()


def boot_id() -> str:
    """The kernel's id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boot_clock_s() -> float:
    """Seconds since boot, the same for every process of the host; setting the wall clock does not move it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_started(pid: int) -> int | None:
    """Start time in clock ticks since boot; None when there is no such process or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold spaces
    return None if state in "ZX" else int(fields[18])


def same_boot(holder: Holder) -> bool:
    """Whether the holder's pid can be looked up here."""
    return holder.host == host_name() and holder.boot_id == boot_id()


def is_alive(holder: Holder) -> bool:
    """Whether a holder of this very boot still runs; ask `same_boot` first."""
    return process_started(holder.pid) == holder.pid_started
