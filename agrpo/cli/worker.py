"""`agrpo worker RUN`: a rollout worker on this machine for a run whose trainer is on another one."""

import functools
import signal

from agrpo.cli.stores import opened
from agrpo.session.elsewhere import work_elsewhere

FINISHED, INTERRUPTED = 0, 130


def work(store_url: str | None, run_id: str) -> int:
    """Work until the run is finished, or Ctrl-C; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop from outside is the same as Ctrl-C
    try:
        with opened(store_url) as store:
            work_elsewhere(store, run_id, functools.partial(print, flush=True))
    except KeyboardInterrupt:
        print(f"stopped; the others go on with its groups. Again: agrpo worker {run_id}")
        return INTERRUPTED
    return FINISHED
