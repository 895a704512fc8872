"""Turns of groups that are still being generated: a kill loses the turn in flight, and nothing that came back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select

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
    kept = _last_word(turns)
    first = {(new.group_id, new.member): new for new in reversed(kept)}
    rows = [_row(new) for new in kept]
    with attempt.write() as connection:
        _check_claimed(connection, attempt.run_id, {new.group_id for new in kept})
        lengths = _stored_lengths(connection, {new.group_id for new in kept})
        fresh = [_empty_rollout(new) for key, new in first.items() if key not in lengths]
        if fresh:
            connection.execute(insert(schema.rollouts), fresh)
        for key, new in first.items():
            if lengths.get(key, 0) > new.position:
                here = (_turns.group_id == new.group_id, _turns.member == new.member)
                connection.execute(delete(schema.turns).where(*here, _turns.turn >= new.position))
        connection.execute(insert(schema.turns), rows)


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


def _last_word(turns: Sequence[NewTurn]) -> list[NewTurn]:
    """What is left of turns that came one after the other, when each replaces those at its place and after."""
    kept: dict[tuple[int, int], list[NewTurn]] = {}
    for new in turns:
        earlier = kept.get((new.group_id, new.member), [])
        kept[new.group_id, new.member] = [*(turn for turn in earlier if turn.position < new.position), new]
    return [new for of_rollout in kept.values() for new in of_rollout]


def _check_claimed(connection: Connection, run_id: str, group_ids: set[int]) -> None:
    claimed = select(_groups.id).where(_groups.id.in_(group_ids), _groups.run_id == run_id, _groups.status == "claimed")
    lost = group_ids - set(connection.execute(claimed).scalars())
    if lost:
        raise StatusConflict(f"group {min(lost)} is no longer claimed: no turn can be added")


def _stored_lengths(connection: Connection, group_ids: set[int]) -> dict[tuple[int, int], int]:
    """Turns that each known rollout of these groups has, by group and member."""
    same = and_(_turns.group_id == _rollouts.group_id, _turns.member == _rollouts.member)
    query = (
        select(_rollouts.group_id, _rollouts.member, func.coalesce(func.max(_turns.turn) + 1, 0))
        .select_from(schema.rollouts.outerjoin(schema.turns, same))
        .where(_rollouts.group_id.in_(group_ids))
        .group_by(_rollouts.group_id, _rollouts.member)
    )
    return {(group_id, member): length for group_id, member, length in connection.execute(query)}


def _empty_rollout(new: NewTurn) -> dict[str, Any]:
    empty = {"completion": [], "num_generated": 0, "tool_call_count": 0, "tool_failure_count": 0}
    unscored = {"terminated": False, "rewards": {}, "advantage": 0.0, "rollout_id": ""}
    return {"group_id": new.group_id, "member": new.member, "status": "open", "version": new.version} | empty | unscored
