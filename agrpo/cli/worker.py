"""`agrpo worker RUN`: a rollout worker on this machine for a run whose trainer is on another one."""

import functools
import signal

from agrpo.cli.stores import opened
from agrpo.launch.exits import DONE, INTERRUPTED
from agrpo.session.elsewhere import work_elsewhere
from agrpo.store import command


def work(store_url: str | None, run_id: str) -> int:
    """Work until the run is finished, or Ctrl-C; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop from outside is the same as Ctrl-C
    with opened(store_url) as store:
        try:
            work_elsewhere(store, run_id, functools.partial(print, flush=True))
        except KeyboardInterrupt:
            again = command(f"worker {run_id}", store.url)
            print(f"stopped; the others go on with its groups. Again: {again}")
            return INTERRUPTED
    return DONE
