"""The accounting by sample: what follows from the samples' statuses, inside the transaction that changed them."""

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Connection, Table, case, exists, func, select, update

from agrpo.store import schema
from agrpo.store.sql import chunks

_groups, _samples = schema.groups.c, schema.samples.c


def settle_groups(connection: Connection, group_ids: Iterable[int]) -> None:
    """Derive the status of these groups from their samples."""
    for ids in chunks(sorted(set(group_ids))):
        status = case((_has_sample("pending"), "ready"), (_has_sample("trained"), "trained"), else_="dropped")
        connection.execute(update(schema.groups).where(_groups.id.in_(ids)).values(status=status))


def _has_sample(status: str) -> ColumnElement[bool]:
    return exists().where(_samples.group_id == _groups.id, _samples.status == status)


def trained_prompt_index(connection: Connection, run_id: str, step: int | None) -> int:
    """First prompt with a pending sample, a claim, or never claimed; samples of steps after `step` are pending."""
    open_groups = select(func.min(_groups.prompt_index)).where(
        _groups.run_id == run_id, _groups.status.in_(("claimed", "ready"))
    )
    candidates = [connection.execute(open_groups).scalar()]
    if step is not None:
        later = (
            select(func.min(_groups.prompt_index))
            .join(schema.samples, _samples.group_id == _groups.id)
            .where(_samples.run_id == run_id, _samples.status == "trained", _samples.step > step)
        )
        candidates.append(connection.execute(later).scalar())
    known = [index for index in candidates if index is not None]
    never_claimed = select(schema.runs.c.next_prompt_index).where(schema.runs.c.run_id == run_id)
    return int(min(known) if known else connection.execute(never_claimed).scalar_one())


def counts(connection: Connection, table: Table, run_id: str) -> dict[str, int]:
    """Number of a run's rows by status."""
    query = select(table.c.status, func.count()).where(table.c.run_id == run_id).group_by(table.c.status)
    return {row[0]: row[1] for row in connection.execute(query)}


def free_claims(connection: Connection, *which: ColumnElement[bool]) -> None:
    """Let the next worker take these groups: their claims will not be fulfilled."""
    connection.execute(update(schema.groups).where(_groups.status == "claimed", *which).values(claimed_by=None))
