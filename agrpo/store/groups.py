"""Groups: a prompt is claimed, computed and committed; a crash in between leaves a claim that the next one takes."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, or_, select, update

from agrpo import codec
from agrpo.records import NO_REWARD, GroupCommit, ScoredRollout
from agrpo.store import drafts, schema, streams
from agrpo.store.attempt import Attempt
from agrpo.store.json_text import to_floats
from agrpo.store.payload import digest, turn_rows
from agrpo.store.sql import exactly, inserted_id
from agrpo.store.store import Store
from agrpo.store.streams import StreamPosition

Status = Literal["claimed", "ready", "trained", "dropped"]
_groups, _rollouts, _runs = schema.groups.c, schema.rollouts.c, schema.runs.c


@dataclass(frozen=True, slots=True)
class Claim:
    """A prompt that this process is to generate."""

    group_id: int
    prompt_index: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as the store has it, without its payload."""

    id: int
    prompt_index: int
    status: Status
    drop_reason: str | None
    claimed_by: int | None
    row_index: int | None
    epoch: int | None
    version: int | None
    ready_order: int | None
    ready_at: float | None


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """A scored rollout without its tokens."""

    rewards: dict[str, float | None]
    reward: float
    """NaN when none scored."""
    advantage: float
    num_generated: int
    terminated: bool
    tool_call_count: int
    tool_failure_count: int


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A scored group for the metrics, dropped ones included."""

    group_id: int
    ready_order: int
    version: int
    drop_reason: str | None
    stats: dict[str, float]
    rollouts: list[RolloutStats]


def claim(
    attempt: Attempt,
    process_id: int,
    limit: int,
    stop_index: int | None = None,
    positions: Sequence[StreamPosition] = (),
) -> list[Claim]:
    """Claim up to `limit` prompts: freed claims first, lowest index first, then new ones below `stop_index`.

    `positions`: what the worker has learnt of its stream on the way to these prompts.
    """
    mine = {"claimed_by": process_id, "claimed_at": time.time()}
    freed = (
        select(_groups.id, _groups.prompt_index)
        .where(_groups.run_id == attempt.run_id, _groups.status == "claimed", _groups.claimed_by.is_(None))
        .order_by(_groups.prompt_index)
        .limit(limit)
    )
    with attempt.write() as connection:
        streams.note(connection, attempt.run_id, process_id, positions)
        claims = [Claim(*row) for row in connection.execute(freed)]
        if claims:
            taken = [claim.group_id for claim in claims]
            connection.execute(update(schema.groups).where(_groups.id.in_(taken)).values(**mine))
        return claims + _claim_new(connection, attempt.run_id, limit - len(claims), stop_index, mine)


def any_claimed(store: Store, run_id: str) -> bool:
    """Whether a prompt is still to become a group, also one that a dead worker left."""
    query = select(_groups.id).where(_groups.run_id == run_id, _groups.status == "claimed").limit(1)
    with store.read() as connection:
        return connection.execute(query).scalar() is not None


def commit(attempt: Attempt, group: GroupCommit) -> None:
    """Store a finished group: rollouts, turns and samples, pending or dropped, in one transaction.

    Raises StatusConflict unless the group is claimed.
    """
    rollouts = [_rollout_row(group.group_id, member, scored) for member, scored in enumerate(group.rollouts)]
    turns = [
        row
        for member, scored in enumerate(group.rollouts)
        for row in turn_rows(group.group_id, member, group.prompt_ids, scored.rollout.turns)
    ]
    samples = _sample_rows(attempt.run_id, group)
    values = _group_values(group, bool(samples))
    with attempt.write() as connection:
        values["ready_order"] = _next_ready_order(connection, attempt.run_id)
        _leave_claimed(connection, attempt, group.group_id, values)
        drafts.clear(connection, group.group_id)
        for table, rows in ((schema.rollouts, rollouts), (schema.turns, turns), (schema.samples, samples)):
            if rows:
                connection.execute(insert(table), rows)


def skip(attempt: Attempt, group_id: int, reason: str) -> None:
    """Drop a claimed prompt that gives no rollouts: refused by a filter, too long, failed."""
    values = {"status": "dropped", "drop_reason": reason, "claimed_by": None, "ready_at": time.time()}
    with attempt.write() as connection:
        _leave_claimed(connection, attempt, group_id, values)
        drafts.clear(connection, group_id)


def groups(store: Store, run_id: str, status: Status | None = None) -> list[GroupRow]:
    """The run's groups by prompt index, all or those of one status."""
    query = select(*(_groups[name] for name in GroupRow.__slots__)).where(_groups.run_id == run_id)
    if status is not None:
        query = query.where(_groups.status == status)
    with store.read() as connection:
        return [GroupRow(*row) for row in connection.execute(query.order_by(_groups.prompt_index))]


def skipped(store: Store, run_id: str, start: int, stop: int) -> dict[str, int]:
    """How many prompts with an index from `start` to `stop` gave no rollouts, or none with a reward, by reason."""
    here = (_groups.run_id == run_id, _groups.prompt_index >= start, _groups.prompt_index < stop)
    dropped = (_groups.status == "dropped", or_(_groups.version.is_(None), _groups.drop_reason == NO_REWARD))
    query = select(_groups.drop_reason, func.count()).where(*here, *dropped).group_by(_groups.drop_reason)
    with store.read() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


def scored_since(store: Store, run_id: str, group_order: int) -> list[GroupStats]:
    """Groups finished after the one with this ready_order (0: all), in that order."""
    columns = (_groups.id, _groups.ready_order, _groups.version, _groups.drop_reason, _groups.stats)
    newer = (_groups.run_id == run_id, _groups.ready_order > group_order)
    found = select(*columns).where(*newer).order_by(_groups.ready_order)
    members = select(schema.rollouts).join(schema.groups, _groups.id == _rollouts.group_id).where(*newer)
    rollouts: dict[int, list[RolloutStats]] = {}
    with store.read() as connection:
        for row in connection.execute(members.order_by(_rollouts.group_id, _rollouts.member)):
            rollouts.setdefault(row.group_id, []).append(_rollout_stats(dict(row._mapping)))
        return [
            GroupStats(id, order, version, reason, to_floats(stats), rollouts.get(id, []))
            for id, order, version, reason, stats in connection.execute(found)
        ]


def _claim_new(
    connection: Connection, run_id: str, limit: int, stop_index: int | None, mine: dict[str, Any]
) -> list[Claim]:
    here = _runs.run_id == run_id
    start = connection.execute(select(_runs.next_prompt_index).where(here)).scalar_one()
    end = start + limit if stop_index is None else min(start + limit, stop_index)
    claims = []
    for index in range(start, end):
        row = {"run_id": run_id, "prompt_index": index, "status": "claimed", **mine}
        claims.append(Claim(inserted_id(connection.execute(insert(schema.groups).values(**row))), index))
    if claims:
        connection.execute(update(schema.runs).where(here).values(next_prompt_index=end))
    return claims


def _leave_claimed(connection: Connection, attempt: Attempt, group_id: int, values: dict[str, Any]) -> None:
    claimed = (_groups.id == group_id, _groups.run_id == attempt.run_id, _groups.status == "claimed")
    changed = connection.execute(update(schema.groups).where(*claimed).values(**values)).rowcount
    exactly(1, changed, f"group {group_id} is no longer claimed")


def _next_ready_order(connection: Connection, run_id: str) -> int:
    here = _runs.run_id == run_id
    connection.execute(update(schema.runs).where(here).values(last_ready_order=_runs.last_ready_order + 1))
    return int(connection.execute(select(_runs.last_ready_order).where(here)).scalar_one())


def _group_values(group: GroupCommit, has_samples: bool) -> dict[str, Any]:
    pending = has_samples and group.drop_reason is None
    prompt_ids = codec.encode_ints(group.prompt_ids)
    return {
        "status": "ready" if pending else "dropped",
        "drop_reason": None if pending else group.drop_reason or "nothing_trained",
        "claimed_by": None,
        "row_index": group.row_index,
        "epoch": group.epoch,
        "version": group.model_version,
        "ready_at": time.time(),
        "prompt": group.prompt,
        "prompt_ids": prompt_ids,
        "digest": digest([prompt_ids]),
        "stats": group.stats,
    }


def _rollout_row(group_id: int, member: int, scored: ScoredRollout) -> dict[str, Any]:
    rollout = scored.rollout
    return {
        "group_id": group_id,
        "member": member,
        "rollout_id": rollout.rollout_id,
        "completion": rollout.completion,
        "num_generated": len(rollout.completion_ids),
        "tool_call_count": rollout.tool_call_count,
        "tool_failure_count": rollout.tool_failure_count,
        "terminated": scored.terminated,
        "rewards": scored.rewards,
        "reward": None if math.isnan(scored.reward) else float(scored.reward),
        "advantage": float(scored.advantage),
        "status": "scored",
    }


def _sample_rows(run_id: str, group: GroupCommit) -> list[dict[str, Any]]:
    fate = {"status": "pending" if group.drop_reason is None else "dropped", "drop_reason": group.drop_reason}
    samples = [
        {"member": member, "part": part, "num_tokens": sequence.num_tokens, "num_trained": sequence.num_trained}
        for member, scored in enumerate(group.rollouts)
        for part, sequence in enumerate(scored.sequences)
    ]
    shared = {"run_id": run_id, "group_id": group.group_id, **fate}
    return [sample | shared | {"position": position} for position, sample in enumerate(samples)]


def _rollout_stats(row: dict[str, Any]) -> RolloutStats:
    values = {name: row[name] for name in RolloutStats.__slots__}
    return RolloutStats(**values | {"reward": math.nan if row["reward"] is None else row["reward"]})
