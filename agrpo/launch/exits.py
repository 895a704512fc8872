"""How a command or a process of a run says why it ended, and what the launcher does about it."""

import contextlib
import errno
import signal
import sys
import traceback
from collections.abc import Callable
from enum import Enum
from typing import NoReturn

from agrpo.errors import BadInput, LeaseLost, Outage, StoreError
from agrpo.launch import farewell
from agrpo.launch.farewell import Farewell

DONE = 0
FAILED = 1
"""A command without a traceback; never a child of ours."""
BAD_INPUT = 2
BUG = 70
OUTAGE = 75
LEASE_LOST = 76
INTERRUPTED = 130
"""A command that Ctrl-C ended; what a shell reports of SIGINT."""
STOPPED = 143
"""Asked to stop before its work was done; what a shell reports of SIGTERM."""
LEAVE_SIGNAL = signal.SIGUSR1
"""To a worker: finish the groups in flight, take no further ones, and end with DONE."""
CANNOT_EXECUTE = (126, 127)
REFUSAL = "cannot go on: "
"""Begins the words of a child that met input it cannot use, in its log."""


class Verdict(Enum):
    """What follows from an exit."""

    DONE = "its work is done"
    RESTART = "another try may go better"
    GIVE_UP = "another try would end the same way"
    LEASE_LOST = "another attempt owns the run"


def verdict(exit_code: int | None) -> Verdict:
    """Read an exit code: negative for a signal, None where nobody could wait for the process.

    Code 1 is restarted: servers and torchrun say it for everything that happens to them.
    """
    if exit_code == DONE:
        return Verdict.DONE
    if exit_code == LEASE_LOST:
        return Verdict.LEASE_LOST
    if exit_code in (BUG, BAD_INPUT, *CANNOT_EXECUTE):
        return Verdict.GIVE_UP
    return Verdict.RESTART


def describe(exit_code: int | None) -> str:
    """The exit in words that complete "it ..."."""
    if exit_code is None:
        return "ended"
    meaning = {
        BAD_INPUT: " (input it cannot use)",
        BUG: " (a bug)",
        OUTAGE: " (an outage)",
        LEASE_LOST: " (the lease is lost)",
        STOPPED: " (asked to stop)",
        CANNOT_EXECUTE[1]: " (it could not be started)",
    }.get(exit_code, "")
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}{meaning}"


def run(main: Callable[[], None]) -> NoReturn:
    """Run a child's body and leave with the exit code that tells the launcher how it went."""
    try:
        main()
    except LeaseLost as error:
        leave(LEASE_LOST, f"lease lost: {error}")
    except Outage as error:
        leave(OUTAGE, f"outage: {error}")
    except (BadInput, StoreError) as error:
        leave(BAD_INPUT, f"{REFUSAL}{error}")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            leave(BUG, traceback.format_exc())
        leave(OUTAGE, f"outage: {error}")
    except Exception:
        leave(BUG, traceback.format_exc())
    sys.exit(DONE)


def leave(code: int, message: str) -> NoReturn:
    """Say why, and go."""
    farewell.leave(Farewell(code, message))
    with contextlib.suppress(OSError):  # a full disk may have no room for the words, but for the code
        print(message, file=sys.stderr, flush=True)
    sys.exit(code)
