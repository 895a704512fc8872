"""What happened to a run, in words: restarts, breaks, drops, reasons."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.store import Store


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the run's history."""

    id: int
    token: int
    at: float
    """Seconds since 1970."""
    kind: str
    message: str
    detail: dict[str, Any]


def add(attempt: Attempt, kind: str, message: str, **detail: Any) -> None:
    """Note an event: one word to search by, one line for a person, plain values for a program."""
    with attempt.write() as connection:
        note(connection, attempt, kind, message, **detail)


def note(connection: Connection, attempt: Attempt, kind: str, message: str, **detail: Any) -> None:
    """Add an event inside a transaction of the store."""
    row = {"at": time.time(), "kind": kind, "message": message.replace("\0", ""), "detail": detail}
    connection.execute(insert(schema.run_events).values(run_id=attempt.run_id, token=attempt.token, **row))


def events(store: Store, run_id: str) -> list[Event]:
    """Every event of the run, first to last."""
    table = schema.run_events.c
    query = select(*(table[name] for name in Event.__slots__)).where(table.run_id == run_id).order_by(table.id)
    with store.read() as connection:
        return [Event(*row) for row in connection.execute(query)]
