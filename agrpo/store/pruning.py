"""Deletes tokens and log-probabilities of steps that no replay from a checkpoint needs; the ledger itself stays."""

import time
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, update

from agrpo.store import schema
from agrpo.store.attempt import Attempt

Keep = Literal["all", "none"] | int
_groups, _samples, _turns = schema.groups.c, schema.samples.c, schema.turns.c
_AT_A_TIME = 200
"""Groups of one transaction, so that nobody waits long for it."""


def prune(attempt: Attempt, keep: Keep) -> int:
    """Delete the payloads of groups whose samples are all dropped or trained before what `keep` keeps.

    `keep` counts steps before the cursor; what the cursor's replay needs always stays, and what a fork shares. Returns
    the number of groups.
    """
    if keep == "all":
        return 0
    num_steps = 0 if keep == "none" else keep
    num_pruned, after_id, num_due = 0, 0, _AT_A_TIME
    while num_due == _AT_A_TIME:
        with attempt.store.read() as connection:  # the search keeps no writer waiting
            due = connection.execute(due_groups(attempt.run_id, num_steps, after_id)).scalars().all()
        num_pruned += _delete_payloads(attempt, due)
        num_due, after_id = len(due), max(due, default=after_id)
    return num_pruned


def due_groups(run_id: str, num_steps: int, after_id: int) -> Select[Any]:
    """The query for the next groups that are over, by number."""
    needed = exists().where(
        _samples.group_id == _groups.id,
        (_samples.status == "pending") | (_samples.step > _last_step(run_id, num_steps)),
    )
    over = (_groups.run_id == run_id, _groups.status.in_(("trained", "dropped")), _groups.prompt_ids.is_not(None))
    here = (_groups.id > after_id, *over, ~needed, ~_is_shared())
    return select(_groups.id).where(*here).order_by(_groups.id).limit(_AT_A_TIME)


def _delete_payloads(attempt: Attempt, due: Sequence[int]) -> int:
    """Delete those that no fork has begun to share since they were found; their number."""
    with attempt.write() as connection:
        own = connection.execute(select(_groups.id).where(_groups.id.in_(due), ~_is_shared())).scalars().all()
        connection.execute(delete(schema.turns).where(_turns.group_id.in_(own)))
        gone = {"prompt_ids": None, "digest": None, "pruned_at": time.time()}
        connection.execute(update(schema.groups).where(_groups.id.in_(own)).values(**gone))
    return len(own)


def _is_shared() -> ColumnElement[bool]:
    other = schema.groups.alias("other")
    return exists().where(other.c.shared_group_id == _groups.id)


def _last_step(run_id: str, num_steps: int) -> Any:
    """The last step that is not kept."""
    cursor = select(func.coalesce(schema.runs.c.checkpoint_step, 0)).where(schema.runs.c.run_id == run_id)
    return cursor.scalar_subquery() - num_steps
