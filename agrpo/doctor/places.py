"""The store: can it be opened, is its schema this code's, may we write?"""

import os
from pathlib import Path

from agrpo.doctor.finding import Finding
from agrpo.errors import AgrpoError
from agrpo.store import Store, runs

_SQLITE = "sqlite:///"
_OTHER_PLACE = "change its permissions, or name another store"


def check_store(url: str) -> Finding:
    """Opened for reading, never created."""
    hidden = hide_password(url)
    if url.startswith(_SQLITE) and not (path := Path(url.removeprefix(_SQLITE))).exists():
        return _new_file(hidden, path)
    try:
        store = Store.open(url, create=False)
    except AgrpoError as error:
        return Finding("store", "problem", str(error), "name another store in AGRPO_DATABASE_URL or store.url")
    try:
        number = len(runs.list_runs(store))
    except AgrpoError as error:
        old = "expected" in str(error)
        do = "the next run migrates it" if old else "see docs/operations.md, or name another store"
        return Finding("store", "warning" if old else "problem", str(error), do)
    finally:
        store.close()
    if url.startswith(_SQLITE) and not os.access(url.removeprefix(_SQLITE), os.W_OK):
        return Finding("store", "problem", f"{hidden} cannot be written", _OTHER_PLACE)
    return Finding("store", "ok", f"{hidden} holds {number} runs")


def _new_file(url: str, path: Path) -> Finding:
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(there, os.W_OK):
        return Finding("store", "problem", f"{there} cannot be written", _OTHER_PLACE)
    return Finding("store", "ok", f"{url} will be made by the first run")


def hide_password(url: str) -> str:
    """The URL as it may be shown."""
    scheme, slashes, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{slashes}{user.partition(':')[0]}{at}{place}" if at else url
