"""Turns of groups that are still being generated: a kill loses the turn in flight, and nothing that came back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from agrpo.errors import StatusConflict
from agrpo.records import TurnRecord
from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.payload import read_turns, turn_row
from agrpo.store.store import Store

_groups, _rollouts, _turns = schema.groups.c, schema.rollouts.c, schema.turns.c


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn that just came back."""

    group_id: int
    member: int
    position: int
    """Its place in the rollout, from 0; a stored turn there, and all after it, are replaced."""
    version: int
    """Policy version when its rollout started."""
    before: TurnRecord | None
    """The turn before it."""
    turn: TurnRecord


@dataclass(frozen=True, slots=True)
class Draft:
    """An unfinished rollout with the turns that came back."""

    member: int
    version: int
    turns: list[TurnRecord]


def add(attempt: Attempt, turns: Sequence[NewTurn]) -> None:
    """Store turns, all in one transaction. Raises StatusConflict when one's group is no longer claimed."""
    rows = [_row(new) for new in turns]
    with attempt.write() as connection:
        for new, row in zip(turns, rows, strict=True):
            _open_rollout(connection, attempt.run_id, new)
            here = (_turns.group_id == new.group_id, _turns.member == new.member)
            connection.execute(delete(schema.turns).where(*here, _turns.turn >= new.position))
            connection.execute(insert(schema.turns).values(**row))


def of_group(store: Store, group_id: int) -> list[Draft]:
    """The unfinished rollouts of a claimed group, by member."""
    opened = select(_rollouts.member, _rollouts.version).where(
        _rollouts.group_id == group_id, _rollouts.status == "open"
    )
    rows = select(schema.turns).where(_turns.group_id == group_id).order_by(_turns.member, _turns.turn)
    with store.read() as connection:
        versions = {row.member: row.version for row in connection.execute(opened)}
        members = groupby(connection.execute(rows), key=lambda row: int(row.member))
        return [Draft(member, versions[member], read_turns([], of)) for member, of in members if member in versions]


def discard(attempt: Attempt, group_id: int) -> None:
    """Forget the unfinished rollouts of a group."""
    with attempt.write() as connection:
        clear(connection, group_id)


def clear(connection: Connection, group_id: int) -> None:
    """Delete the drafts of a group inside a transaction: what follows are its finished rollouts, or none."""
    connection.execute(delete(schema.turns).where(_turns.group_id == group_id))
    connection.execute(delete(schema.rollouts).where(_rollouts.group_id == group_id))


def _row(new: NewTurn) -> dict[str, Any]:
    held = [] if new.before is None else [*new.before.prompt_ids, *new.before.output_ids]
    return turn_row(new.group_id, new.member, new.position, held, new.turn)


def _open_rollout(connection: Connection, run_id: str, new: NewTurn) -> None:
    status = select(_groups.status).where(_groups.id == new.group_id, _groups.run_id == run_id)
    if connection.execute(status).scalar() != "claimed":
        raise StatusConflict(f"group {new.group_id} is no longer claimed: no turn can be added")
    known = select(_rollouts.member).where(_rollouts.group_id == new.group_id, _rollouts.member == new.member)
    if connection.execute(known).first() is None:
        empty = {"completion": [], "num_generated": 0, "tool_call_count": 0, "tool_failure_count": 0}
        unscored = {"terminated": False, "rewards": {}, "advantage": 0.0, "rollout_id": ""}
        key = {"group_id": new.group_id, "member": new.member, "status": "open", "version": new.version}
        connection.execute(insert(schema.rollouts).values(**key, **empty, **unscored))
