"""`agrpo train` and `agrpo resume`: the flow with a live display, then the outcome in a few lines."""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from agrpo.cli.live import watching
from agrpo.cli.show import summary_table
from agrpo.doctor.places import hide_password
from agrpo.errors import StoreError
from agrpo.launch.exits import DONE, FAILED, INTERRUPTED
from agrpo.runfile import RunFile, parse, stored_config
from agrpo.session.check import check_data, check_input, find_begun
from agrpo.store import Store, command, runs
from agrpo.store.runs import RunSummary
from flows.beforehand import load_secrets, quieten

_STOPPING_S = 15.0
"""From a stop to its end, at most."""


def run_flow(run: RunFile, as_json: bool, go_on: str | None = None) -> int:
    """Train in this process; the exit code says how it ended. `go_on` is the command that continues it."""
    quieten()
    _listen_for_stops()
    console = Console(file=sys.stderr if as_json else sys.stdout)
    found, interrupted = find_begun(run), False
    go_on = go_on or command(f"resume {run.name}", run.store_url)
    # The store's address may hold a password, and what passes through Prefect is kept by it.
    os.environ["AGRPO_DATABASE_URL"] = run.store_url
    if found is None or found.status != "finished":
        load_secrets(run)
        check_input(run)
        check_data(run)
        try:
            _train(run, run.run_dir if found is None else Path(found.run_dir), console)
        except KeyboardInterrupt:
            interrupted = True
    code = _outcome(run, console, as_json, go_on)
    return INTERRUPTED if interrupted and code != DONE else code


def _listen_for_stops() -> None:
    """A stop from outside is the same as Ctrl-C; whoever presses it again meanwhile does not break off the stopping."""
    told_at = float("-inf")

    def stop(*_: object) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > _STOPPING_S:
            told_at = time.monotonic()
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as for a job in the background
        signal.signal(signal.SIGINT, stop)


def _train(run: RunFile, folder: Path, console: Console) -> None:
    from prefect.exceptions import CancelledRun

    from flows.api import trouble
    from flows.embedded import prefect_api
    from flows.train import train
    from tasks.timeline import SAYS_NO

    try:
        with prefect_api(folder / "logs" / "prefect.log"), watching(run.store_url, run.name, console):
            train(parse(stored_config(run), run.name), return_state=True).result(raise_on_failure=True)
    except CancelledRun:
        pass
    except SAYS_NO as error:
        # Whether Prefect heard of the end is Prefect's matter: how the run ended stands in the store.
        summary = _summary(run)
        if summary is None:
            raise trouble(error) from error
        if summary.status != "finished":
            print(f"agrpo: {trouble(error)}", file=sys.stderr)


def _outcome(run: RunFile, console: Console, as_json: bool, go_on: str) -> int:
    """The store says how it ended: Prefect's server may have missed it."""
    summary = _summary(run)
    if summary is None:
        console.print("stopped before it began")
        return INTERRUPTED
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
    console.print(summary_table(summary))
    if summary.status == "finished":
        console.print(f"UI: {_interface()}", highlight=False, soft_wrap=True)
        return DONE
    console.print(f"resume: {go_on}", highlight=False, soft_wrap=True)  # to be copied
    return INTERRUPTED if summary.status == "stopped" else FAILED


def _interface() -> str:
    """Where the run's history is to be seen."""
    from prefect.settings import PREFECT_UI_URL  # that of the API unless somebody chose another

    address = PREFECT_UI_URL.value()
    return hide_password(address) if address else "agrpo ui, then http://127.0.0.1:4200"


def _summary(run: RunFile) -> RunSummary | None:
    """None when it was stopped before it was in the store."""
    try:
        store = Store.open(run.store_url, create=False)
    except StoreError:
        return None
    try:
        return None if runs.find_run(store, run.name) is None else runs.summary(store, run.name)
    except StoreError:  # a store without tables yet
        return None
    finally:
        store.close()
