"""`agrpo train` and `agrpo resume`: the flow with a live display, then the outcome in a few lines."""

import dataclasses
import json
import os
import signal
import sys
from contextlib import suppress

from rich.console import Console

from agrpo.cli.live import watching
from agrpo.cli.show import summary_table
from agrpo.errors import StoreError
from agrpo.launch.attach import refuse_other_settings
from agrpo.runfile import RunFile, config_hash, decisive, parse, stored_config
from agrpo.session.check import check_data, check_input
from agrpo.store import Store, runs

FINISHED, FAILED, INTERRUPTED = 0, 1, 130

# Said before Prefect is imported, which reads them then. What a person should see, this module prints; what else
# happens is in the logs of the run's folder and in Prefect's history.
_QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}


def run_flow(run: RunFile, as_json: bool) -> int:
    """Train in this process; the exit code says how it ended."""
    check_input(run)
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    # The store's address may hold a password, and what passes through Prefect is kept by it.
    os.environ["AGRPO_DATABASE_URL"] = run.store_url
    # A stop from outside is the same as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(file=sys.stderr if as_json else sys.stdout)
    if not _is_finished(run):
        check_data(run)
        try:
            _train(run, console)
        except KeyboardInterrupt:
            console.print("stopped")
    return _outcome(run, console, as_json)


def _is_finished(run: RunFile) -> bool:
    """Known before anything is started or made, as is a name that other settings have taken."""
    try:
        store = Store.open(run.store_url, create=False)
    except StoreError:  # no store yet
        return False
    try:
        store.migrate()
        found = runs.find_run(store, run.name)
    finally:
        store.close()
    if found is not None:
        refuse_other_settings(found, stored_config(run), config_hash(run), decisive)
    return found is not None and found.status == "finished"


def _train(run: RunFile, console: Console) -> None:
    import httpx
    from prefect.exceptions import CancelledRun

    from flows.embedded import prefect_api
    from flows.train import train

    log_path = run.run_dir / "logs" / "prefect.log"
    # Whether Prefect heard of the end is Prefect's matter: how the run ended stands in the store.
    missed = suppress(CancelledRun, httpx.TransportError)
    with missed, prefect_api(log_path), watching(run.store_url, run.name, console):
        train(parse(stored_config(run), run.name), return_state=True).result(raise_on_failure=True)


def _outcome(run: RunFile, console: Console, as_json: bool) -> int:
    """The store says how it ended: Prefect's server may have missed it."""
    store = Store.open(run.store_url, create=False)
    try:
        summary = runs.summary(store, run.name)
    finally:
        store.close()
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
    console.print(summary_table(summary))
    if summary.status == "finished":
        console.print("UI: agrpo ui, then http://127.0.0.1:4200", highlight=False)
        return FINISHED
    console.print(f"resume: agrpo resume {run.name}", highlight=False)
    return INTERRUPTED if summary.status == "stopped" else FAILED
