"""Where a stream of prompts can be read on, noted in the transaction that claims the prompts for which it was read."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select

from agrpo.store import schema
from agrpo.store.sql import put
from agrpo.store.store import Store

_positions = schema.stream_positions.c


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place between two rows of a stream, or its end."""

    row_index: int
    """The next row that the stream gives from here; at the end the number of its rows."""
    state: dict[str, Any] | None
    """What the stream says of itself here; None: it says nothing, and is read from its beginning to get here."""
    digest: str
    """Of the rows that follow."""
    is_end: bool = False


def note(connection: Connection, run_id: str, process_id: int, positions: Sequence[StreamPosition]) -> None:
    """Add what a worker has learnt of its stream, inside the transaction of the claim that made it read on."""
    if not positions:
        return
    worker = select(schema.processes.c.index).where(schema.processes.c.id == process_id)
    index = connection.execute(worker).scalar_one()
    for position in positions:
        key = {"run_id": run_id, "index": index, "row_index": position.row_index}
        state = {"stream": position.state, "next_rows": position.digest, "is_end": position.is_end}
        put(connection, schema.stream_positions, key, {"state": state, "at": time.time()})


def positions(store: Store, run_id: str) -> list[StreamPosition]:
    """What any worker of the run has noted, by row: all of them read the same stream."""
    query = select(_positions.row_index, _positions.state).where(_positions.run_id == run_id)
    with store.read() as connection:
        rows = connection.execute(query.order_by(_positions.row_index, _positions["index"])).all()
    found = {row.row_index: row.state for row in rows}
    return [StreamPosition(i, state["stream"], state["next_rows"], state["is_end"]) for i, state in found.items()]


def forget(connection: Connection, run_id: str) -> None:
    """Delete the run's positions inside a transaction: they are of other data."""
    connection.execute(delete(schema.stream_positions).where(_positions.run_id == run_id))
