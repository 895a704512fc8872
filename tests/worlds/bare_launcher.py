"""A launcher without Prefect: `python -m tests.worlds.bare_launcher RUN.yaml` does what the flow does, and no more.

A second argument names another run of the same store to continue, as `agrpo resume` does.
"""

import sys
from contextlib import suppress
from pathlib import Path

from agrpo import runfile
from agrpo.errors import RunStopped
from agrpo.launch.attach import attach
from agrpo.runfile import config_hash, stored_config
from agrpo.session.session import Session
from agrpo.store import Store, runs


def main(path: Path, name: str | None = None) -> None:
    """Attach to the run, start what is missing, wait for the end."""
    run = runfile.load(path)
    store = Store.open(run.store_url)
    if name is not None:
        run = runfile.changed(runs.get_run(store, name).config, [f"store.url={run.store_url}"], name)
    found = attach(store, run.name, stored_config(run), config_hash(run), run.run_dir, max_attempts=10_000)
    if found.attempt is None:
        return
    with suppress(RunStopped), Session(run, found.attempt) as session:
        for index in range(session.num_servers):
            session.start_server(index)
        for index in range(run.workers.count):
            session.start_worker(index)
        session.start_trainer()
        step = session.checkpoint_step()
        while not session.is_trained():
            step = session.wait_for_checkpoint(step)
        session.publish()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
