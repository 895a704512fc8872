"""A rollout worker on another machine than the run's launcher: it joins whichever attempt works on the run now.

It is registered like a local worker and looked after by a launcher of its own, which renews no lease. That one says in
the store that it lives; when it falls silent, the one that owns the run ends the worker's row and frees its claims.
"""

import contextlib
import os
import time
from collections.abc import Callable

from agrpo.errors import AgrpoError, BadInput, LeaseLost, Outage
from agrpo.launch import exits
from agrpo.launch.launcher import Launcher
from agrpo.launch.loops import MACHINE
from agrpo.runfile import RunFile
from agrpo.session import specs
from agrpo.session.stored import settings_of
from agrpo.store import Attempt, Store, leases, processes, runs
from agrpo.store.host import host_name

BEAT_S = 2.0


def work_elsewhere(store: Store, run_id: str, say: Callable[[str], None] = print) -> None:
    """Work for a run until it is finished, under one attempt after the other; a run that stopped is waited for.

    Raises BadInput when this machine cannot work for the run, ChildFailed when the worker keeps dying here.
    """
    stored = runs.get_run(store, run_id)
    run, waits = settings_of(stored), False
    while stored.status != "finished":
        with contextlib.suppress(Outage, LeaseLost):
            attempt = leases.current(store, run_id)
            if attempt is not None:
                _refuse_loopback(run, attempt)
                _stay(run, attempt, say)
            elif not waits:
                say(f"waiting until somebody works on run {run_id} (now {stored.status}); Ctrl-C ends this")
            waits = attempt is None
            stored = runs.get_run(store, run_id)
        time.sleep(BEAT_S)
    say(f"run {run_id} is finished")


def _refuse_loopback(run: RunFile, attempt: Attempt) -> None:
    """Servers that the run starts itself listen on loopback."""
    host = leases.attempts(attempt.store, attempt.run_id)[-1].holder.host
    if not run.servers.urls and host != host_name():
        raise BadInput(
            f"run {run.name!r} starts its own servers, which only its machine {host} reaches: a worker on "
            f"{host_name()} needs servers.urls in the run file"
        )


def _stay(run: RunFile, attempt: Attempt, say: Callable[[str], None]) -> None:
    """One worker for one attempt, until the attempt ends. Raises what ended the worker for good, and LeaseLost."""
    index = _free_index(attempt, run.workers.count)
    spec = specs.worker(run, attempt, index)
    with Launcher(attempt, run.run_dir, owns_run=False) as launcher:
        process_id = launcher.start(spec)
        if _is_taken(attempt, index, process_id):
            return
        log_path = run.run_dir / spec.log_path
        say(f"worker {index} of run {run.name} works for attempt {attempt.token}; its log: {log_path}")
        try:
            while _goes_on(attempt, index):
                launcher.raise_if_failed()
                time.sleep(BEAT_S)
        except KeyboardInterrupt:
            say("its groups in flight are finished, no further ones begun; Ctrl-C again ends them too")
            with contextlib.suppress(AgrpoError):
                _leave(launcher, attempt, index)
            raise


def _leave(launcher: Launcher, attempt: Attempt, index: int) -> None:
    """Let the worker finish what it has begun."""
    (child,) = launcher.children()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, exits.LEAVE_SIGNAL)
    while launcher.children()[0].state == "running" and _goes_on(attempt, index):
        time.sleep(BEAT_S / 4)


def _goes_on(attempt: Attempt, index: int) -> bool:
    """Say that this machine lives; whether somebody still works on the attempt. Raises LeaseLost."""
    with contextlib.suppress(Outage):
        processes.beat(attempt, "worker", index, MACHINE, host_name())
        return leases.current(attempt.store, attempt.run_id) is not None
    return True


def _free_index(attempt: Attempt, num_local: int) -> int:
    """The first one that no worker of the attempt has; the run's own machine keeps its numbers."""
    used = {record.index for record in _workers(attempt)}
    return min(set(range(num_local, num_local + len(used) + 1)) - used)


def _is_taken(attempt: Attempt, index: int, process_id: int) -> bool:
    """Whether another machine chose the same index a moment earlier."""
    return any(record.index == index and record.id < process_id for record in _workers(attempt))


def _workers(attempt: Attempt) -> list[processes.ProcessRecord]:
    live = processes.live(attempt.store, attempt.run_id)
    return [record for record in live if record.kind == "worker" and record.token == attempt.token]
