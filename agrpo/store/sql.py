"""Small statements that several modules of the store need."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Table, and_, insert, update

from agrpo.errors import StatusConflict

Item = TypeVar("Item")


def put(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Write one row, new or not. Safe because a run's writers are serialised."""
    match = and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(update(table).where(match).values(**values)).rowcount == 0:
        connection.execute(insert(table).values(**key, **values))


def inserted_id(result: CursorResult[Any]) -> int:
    """The number that the database gave to the row just inserted."""
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def exactly(expected: int, changed: int, what: str) -> None:
    """Raise StatusConflict unless a guarded write changed as many rows as it meant to."""
    if changed != expected:
        raise StatusConflict(
            f"{what}: {changed} of {expected} rows were in the expected status; another writer was first"
        )


def chunks(items: Sequence[Item], size: int = 1000) -> Iterator[Sequence[Item]]:
    """Slices short enough for one IN list."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
