"""Every check, for a run file or for the machine alone."""

from collections.abc import Iterator
from pathlib import Path

from agrpo.doctor.finding import Finding
from agrpo.doctor.machine import check_disk, check_gpus, check_memory, check_port, check_server, check_shared_memory
from agrpo.doctor.packages import check_packages, check_servers_environment, installed
from agrpo.doctor.places import check_store
from agrpo.errors import BadInput
from agrpo.runfile import RunFile
from agrpo.session.check import check_data, check_input
from agrpo.session.placement import visible_gpus
from agrpo.settings import ServerSettings


def examine(run: RunFile | None, store_url: str) -> Iterator[Finding]:
    """Findings one by one, as some take seconds."""
    servers = ServerSettings() if run is None else run.servers
    gpus = visible_gpus()
    yield from check_packages()
    if servers.urls:
        yield from map(check_server, servers.urls)
    else:
        yield from check_servers_environment(servers.python, bool(gpus))
    yield check_gpus(gpus, installed("torch"))
    yield check_memory()
    yield check_shared_memory()
    yield check_disk(Path("runs") if run is None else run.run_dir)
    yield check_port()
    yield check_store(store_url)
    if run is not None:
        yield _check_run(run)


def _check_run(run: RunFile) -> Finding:
    try:
        check_input(run)
        check_data(run)
    except (BadInput, ImportError) as error:
        return Finding("run file", "problem", str(error), "mend it, then ask again")
    return Finding("run file", "ok", f"run '{run.name}' could be started")
