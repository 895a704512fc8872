"""`agrpo nightly`: nights at the command line, one after another."""

from collections.abc import Iterable
from pathlib import Path

from agrpo import runfile
from agrpo.session.nightly import conclude_night, plan_night, spoilt
from agrpo.store import Store
from flows.console import FINISHED, run_flow


def run_nights(run_file: Path, overrides: Iterable[str], simulate: int | None) -> int:
    """One night, or `simulate` nights of which every second one is spoilt; the exit code of what stopped them."""
    config = runfile.load(run_file, overrides)
    store = Store.open(config.store_url)
    store.migrate()
    try:
        for number in range(1, (simulate or 1) + 1):
            night = plan_night(store, config)
            if simulate is not None and number % 2 == 0:
                night = spoilt(night)
            code = run_flow(night.run, as_json=False)
            if code != FINISHED:
                return code
            print(f"{night.run.name}: {conclude_night(store, night).reason}", flush=True)
    finally:
        store.close()
    return FINISHED
