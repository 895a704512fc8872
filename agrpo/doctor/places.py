"""The store: can it be opened, is its schema this code's, may we write?"""

from pathlib import Path

from agrpo.doctor.finding import Finding
from agrpo.errors import AgrpoError, OldSchema
from agrpo.store import Store, runs

_SQLITE = "sqlite:///"
_ANOTHER = "name another store in AGRPO_DATABASE_URL or store.url"


def check_store(url: str) -> Finding:
    """Opened for reading, never created."""
    hidden = hide_password(url)
    try:
        Store.check_place(url)
        if url.startswith(_SQLITE) and not Path(url.removeprefix(_SQLITE)).exists():
            return Finding("store", "ok", f"{hidden} will be made by the first run")
        store = Store.open(url, create=False)
    except AgrpoError as error:
        return Finding("store", "problem", str(error), _ANOTHER)
    try:
        return Finding("store", "ok", f"{hidden} holds {len(runs.list_runs(store))} runs")
    except OldSchema as error:
        return Finding("store", "warning", str(error), "the next run migrates it")
    except AgrpoError as error:
        return Finding("store", "problem", str(error), "see docs/operations.md, or name another store")
    finally:
        store.close()


def hide_password(url: str) -> str:
    """The URL as it may be shown."""
    scheme, slashes, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{slashes}{user.partition(':')[0]}{at}{place}" if at else url
