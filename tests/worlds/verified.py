"""What every test that trains ends with: the check of `agrpo verify`."""

from pathlib import Path

from agrpo.store import Store, runs
from agrpo.store.verify import verify


def check_ledgers(folder: Path) -> None:
    """Raise when the ledger of a run in a store below this folder does not hold."""
    for path in sorted(folder.rglob("agrpo.db")):
        store = Store.open(f"sqlite:///{path}", create=False)
        try:
            check_store(store)
        finally:
            store.close()


def check_store(store: Store) -> None:
    """Raise when the ledger of a run in it does not hold."""
    for run in runs.list_runs(store):
        problems = verify(store, run.run_id).problems
        assert problems == [], f"run {run.run_id}: {problems[:3]}"
