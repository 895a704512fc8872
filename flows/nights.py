"""`agrpo nightly`: nights at the command line, one after another."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from agrpo import runfile
from agrpo.errors import BadInput
from agrpo.launch.exits import DONE
from agrpo.runfile import RunFile
from agrpo.session.nightly import Night, check_night, conclude_night, give_up, plan_night, spoilt
from agrpo.store import Store
from flows.beforehand import load_secrets
from flows.console import run_flow


def run_nights(run_file: Path, overrides: Sequence[str], simulate: int | None) -> int:
    """One night, or `simulate` nights of which every second one is spoilt; the exit code of what stopped them."""
    if simulate is not None and simulate < 1:
        raise BadInput(f"--simulate {simulate}: expected 1 or more nights; leave it out for one that is not spoilt")
    config = runfile.load(run_file, overrides)
    load_secrets(config)
    check_night(config)
    command = ["agrpo", "nightly", str(run_file), *(part for one in overrides for part in ("--set", one))]
    command += ["--simulate", str(simulate)] if simulate is not None else []
    store = Store.open(config.store_url)
    store.migrate()
    try:
        for _ in range(simulate or 1):
            night = next_night(store, config, simulate is not None)
            code = _train(store, night, shlex.join(command))
            if code != DONE:
                return code
            print(f"{night.run.name}: {conclude_night(store, night).reason}", flush=True)
    finally:
        store.close()
    return DONE


def next_night(store: Store, config: RunFile, is_simulated: bool) -> Night:
    """The night to train now. Whether it is spoilt follows from its own number: an interrupted one goes on as begun."""
    night = plan_night(store, config)
    return spoilt(night) if is_simulated and night.number % 2 == 0 else night


def _train(store: Store, night: Night, go_on: str) -> int:
    try:
        return run_flow(night.run, as_json=False, go_on=go_on)
    finally:
        lost = give_up(store, night)
        if lost is not None:
            print(f"{night.run.name}: {lost.reason}", flush=True)
