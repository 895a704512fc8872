"""A rank of a trainer is a child of torchrun in a session of its own: once torchrun is killed, nobody would find it."""

import ctypes
import os
import signal

from agrpo.launch import supervisor


def end_with_parent() -> None:
    """SIGKILL for this process when its parent dies, or now when it has left its supervisor's descendants already.

    Does nothing in a process that no supervisor looks after.
    """
    wanted = int(os.environ.get(supervisor.SUPERVISOR, 0))
    if not wanted:
        return
    ctypes.CDLL(None).prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    pid = os.getpid()
    while pid > 1 and pid != wanted:
        stat = supervisor.read_stat(pid)
        pid = stat.parent if stat else 0
    if pid != wanted:
        os.kill(os.getpid(), signal.SIGKILL)
