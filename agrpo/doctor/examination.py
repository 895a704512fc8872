"""Every check, for a run file or for the machine alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

from agrpo.doctor.finding import Finding
from agrpo.doctor.machine import check_disk, check_gpus, check_memory, check_port, check_server, check_shared_memory
from agrpo.doctor.packages import check_packages, check_servers_environment, installed
from agrpo.doctor.places import check_store
from agrpo.errors import AgrpoError, BadInput
from agrpo.runfile import RunFile
from agrpo.session.check import check_data, check_input, find_begun
from agrpo.session.placement import visible_gpus
from agrpo.settings import ServerSettings


def examine(run: RunFile | None, store_url: str, beforehand: Callable[[RunFile], None]) -> Iterator[Finding]:
    """Findings one by one, as some take seconds.

    `beforehand` makes ready what the run's own functions may want when they are imported.
    """
    servers = ServerSettings() if run is None else run.servers
    yield from check_packages()
    try:
        gpus = visible_gpus()
    except BadInput as error:
        gpus = []
        yield Finding("gpus", "problem", str(error), "write the numbers, then ask again")
    else:
        yield check_gpus(gpus, installed("torch"))
    if servers.urls:
        yield from map(check_server, servers.urls)
    else:
        yield from check_servers_environment(servers.python, bool(gpus))
    yield check_memory()
    yield check_shared_memory()
    yield check_disk(Path("runs") if run is None else run.run_dir)
    yield check_port()
    yield check_store(store_url)
    if run is not None:
        yield _check_run(run, beforehand)


def _check_run(run: RunFile, beforehand: Callable[[RunFile], None]) -> Finding:
    """The questions that a training asks, in the same order; a module of the user's may raise anything."""
    try:
        find_begun(run, migrate=False)
        beforehand(run)
        check_input(run)
        check_data(run)
    except AgrpoError as error:
        return Finding("run file", "problem", str(error), "mend it, then ask again")
    except (Exception, SystemExit) as error:
        says = f"a function or module that it names raised {type(error).__name__}: {error}"
        return Finding("run file", "problem", says, "agrpo train with --dry-run shows where")
    return Finding("run file", "ok", f"run '{run.name}' could be started")
