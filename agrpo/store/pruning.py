"""Deletes tokens and log-probabilities of steps that no replay from a checkpoint needs; the ledger itself stays."""

import time
from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import Connection, delete, exists, func, select, update

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
    num_pruned, num_due = 0, _AT_A_TIME
    while num_due == _AT_A_TIME:
        with attempt.write() as connection:
            due = _due(connection, attempt.run_id, 0 if keep == "none" else keep)
            connection.execute(delete(schema.turns).where(_turns.group_id.in_(due)))
            gone = {"prompt_ids": None, "digest": None, "pruned_at": time.time()}
            connection.execute(update(schema.groups).where(_groups.id.in_(due)).values(**gone))
        num_due = len(due)
        num_pruned += num_due
    return num_pruned


def _due(connection: Connection, run_id: str, num_steps: int) -> Sequence[int]:
    """Some groups that are over."""
    needed = exists().where(
        _samples.group_id == _groups.id,
        (_samples.status == "pending") | (_samples.step > _last_step(run_id, num_steps)),
    )
    other = schema.groups.alias("other")
    is_shared = exists().where(other.c.shared_group_id == _groups.id)
    over = (_groups.run_id == run_id, _groups.status.in_(("trained", "dropped")), _groups.prompt_ids.is_not(None))
    query = select(_groups.id).where(*over, ~needed, ~is_shared).order_by(_groups.id).limit(_AT_A_TIME)
    return connection.execute(query).scalars().all()


def _last_step(run_id: str, num_steps: int) -> Any:
    """The last step that is not kept."""
    cursor = select(func.coalesce(schema.runs.c.checkpoint_step, 0)).where(schema.runs.c.run_id == run_id)
    return cursor.scalar_subquery() - num_steps
