"""Stored rollouts as people read them: the conversation, its rewards, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, case, exists, func, select, tuple_

from agrpo.records import Message
from agrpo.store import schema
from agrpo.store.json_text import to_floats
from agrpo.store.sql import chunks
from agrpo.store.store import Store

Fate = Literal["open", "pending", "trained", "dropped"]
_groups, _rollouts, _samples, _members = (
    schema.groups.c,
    schema.rollouts.c,
    schema.samples.c,
    schema.step_samples.c,
)


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One rollout of a run; a group that was dropped before it had any stands here once, without a member."""

    group_id: int
    prompt_index: int
    row_index: int | None
    member: int | None
    status: Fate
    """open: its group is still being generated."""
    reason: str | None
    """Why it was dropped."""
    steps: list[int]
    """Steps that trained its samples."""
    version: int | None
    """Policy version when its group was begun."""
    token_versions: list[str]
    """Every policy version that made some of its tokens, oldest first."""
    prompt: list[Message]
    completion: list[Message]
    num_turns: int
    num_generated: int
    terminated: bool
    rewards: dict[str, float | None]
    reward: float | None
    advantage: float | None


def find(
    store: Store,
    run_id: str,
    step: int | None = None,
    group: int | None = None,
    status: Fate | None = None,
    limit: int | None = None,
) -> list[StoredRollout]:
    """Rollouts of one step, group or status, or all; the last `limit` ones, in the order of their groups' ends."""
    shared = func.coalesce(_groups.shared_group_id, _groups.id)
    fate = _fate(run_id)
    query = _select_rollouts(shared, fate).where(_groups.run_id == run_id)
    if step is not None:
        query = query.where(_trained_in(run_id, _members.step == step))
    if group is not None:
        query = query.where(_groups.id == group)
    if status is not None:
        query = query.where(fate == status)
    newest = (_groups.ready_order.desc().nulls_first(), _groups.id.desc(), _rollouts.member.desc())
    with store.read() as connection:
        rows = connection.execute(query.order_by(*newest).limit(limit)).all()[::-1]
        keys = [(row.key, row.member) for row in rows if row.member is not None]
        steps, versions = _steps(connection, run_id, keys), _turn_versions(connection, keys)
    return [_stored(row, steps, versions) for row in rows]


def reward_range(store: Store, run_id: str) -> tuple[float, float] | None:
    """Least and greatest reward that any rollout of the run was given; None before the first."""
    extremes = select(func.min(_rollouts.reward), func.max(_rollouts.reward))
    query = extremes.join(schema.groups, _groups.id == _rollouts.group_id).where(_groups.run_id == run_id)
    with store.read() as connection:
        least, greatest = connection.execute(query).one()
    return None if least is None else (float(least), float(greatest))


def _select_rollouts(shared: ColumnElement[int], fate: ColumnElement[str]) -> Select[Any]:
    reason = select(func.max(_samples.drop_reason)).where(*_same_rollout()).scalar_subquery()
    return select(
        _groups.id, shared.label("key"), _groups.prompt_index, _groups.row_index, _groups.drop_reason,
        _groups.version, _groups.prompt, _rollouts.member, _rollouts.completion, _rollouts.num_generated,
        _rollouts.terminated, _rollouts.rewards, _rollouts.reward, _rollouts.advantage,
        fate.label("fate"), reason.label("sample_reason"),
    ).select_from(schema.groups.outerjoin(schema.rollouts, _rollouts.group_id == shared))  # fmt: skip


def _fate(run_id: str) -> ColumnElement[str]:
    pending = exists().where(*_same_rollout(), _samples.status == "pending")
    return case(
        (_trained_in(run_id), "trained"),
        (_groups.status == "claimed", "open"),
        (and_(pending, _groups.shared_group_id.is_(None)), "pending"),
        else_="dropped",
    )


def _trained_in(run_id: str, *which: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a sample of the rollout is in a step of this run, whose rows a fork shares."""
    of_run = (_members.sample_id == _samples.id, _members.run_id == run_id, *which)
    return exists().where(*_same_rollout(), *of_run)


def _same_rollout() -> tuple[ColumnElement[bool], ...]:
    return _samples.group_id == _rollouts.group_id, _samples.member == _rollouts.member


def _steps(connection: Connection, run_id: str, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for part in chunks(keys, 400):
        query = select(_samples.group_id, _samples.member, _members.step).distinct()
        query = query.join(schema.step_samples, _members.sample_id == _samples.id).where(_members.run_id == run_id)
        here = tuple_(_samples.group_id, _samples.member).in_(part)
        for group_id, member, step in connection.execute(query.where(here).order_by(_members.step)):
            found.setdefault((group_id, member), []).append(step)
    return found


def _turn_versions(connection: Connection, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[list[str]]]:
    """The versions of each turn of these rollouts."""
    turns = schema.turns.c
    found: dict[tuple[int, int], list[list[str]]] = {}
    for part in chunks(keys, 400):
        query = select(turns.group_id, turns.member, turns.weight_versions).order_by(turns.turn)
        for group_id, member, spans in connection.execute(query.where(tuple_(turns.group_id, turns.member).in_(part))):
            found.setdefault((group_id, member), []).append([str(span[0]) for span in spans])
    return found


def _stored(
    row: Row[Any], steps: dict[tuple[int, int], list[int]], versions: dict[tuple[int, int], list[list[str]]]
) -> StoredRollout:
    key = (row.key, row.member)
    turns = versions.get(key, [])
    rewards = {name: value for name, value in (row.rewards or {}).items() if value is not None}
    missing = dict.fromkeys((row.rewards or {}).keys() - rewards.keys())
    return StoredRollout(
        group_id=row.id,
        prompt_index=row.prompt_index,
        row_index=row.row_index,
        member=row.member,
        status=row.fate,
        reason=(row.sample_reason or row.drop_reason or "nothing_trained") if row.fate == "dropped" else None,
        steps=steps.get(key, []),
        version=row.version,
        token_versions=list(dict.fromkeys(version for turn in turns for version in turn)),
        prompt=row.prompt or [],
        completion=row.completion or [],
        num_turns=len(turns),
        num_generated=row.num_generated or 0,
        terminated=bool(row.terminated),
        rewards={**to_floats(rewards), **missing},
        reward=row.reward,
        advantage=row.advantage,
    )
