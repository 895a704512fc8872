"""Which store a command reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from agrpo.store import DEFAULT_URL, Store


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """The store at `url`, at AGRPO_DATABASE_URL, or at the run file's default place; never created by reading."""
    store = Store.open(url or os.environ.get("AGRPO_DATABASE_URL") or DEFAULT_URL, create=False)
    try:
        yield store
    finally:
        store.close()
