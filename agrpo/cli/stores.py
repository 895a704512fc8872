"""Which store a command reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from agrpo.errors import BadInput, StoreError
from agrpo.store import DEFAULT_URL, Store


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """The store at `url`, at AGRPO_DATABASE_URL, or at the run file's default place; never created by reading.

    Raises BadInput where there is none.
    """
    try:
        store = Store.open(url or os.environ.get("AGRPO_DATABASE_URL") or DEFAULT_URL, create=False)
    except StoreError as error:  # a person named it
        raise BadInput(str(error)) from None
    try:
        yield store
    finally:
        store.close()
