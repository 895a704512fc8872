"""Samples: each is pending, trained in exactly one step, or dropped with a reason."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, FromClause, Row, Select, and_, exists, select, tuple_, update

from agrpo import codec
from agrpo.errors import StatusConflict, StoreError
from agrpo.records import TrainingSequence
from agrpo.sequences import build_sequences
from agrpo.store import accounting, schema
from agrpo.store.attempt import Attempt
from agrpo.store.payload import read_turns
from agrpo.store.sql import chunks, exactly
from agrpo.store.store import Store

_samples, _groups, _rollouts, _turns = schema.samples.c, schema.groups.c, schema.rollouts.c, schema.turns.c


@dataclass(frozen=True, slots=True)
class PendingSample:
    """A sample that waits to be trained, without its tokens."""

    sample_id: int
    group_id: int
    prompt_index: int
    rollout_id: str
    version: int
    """Policy version of its group."""
    num_tokens: int
    num_trained: int
    queued_at: float
    """When its group was finished, in seconds since 1970."""
    ready_order: int
    position: int
    """Place inside the group, from 0."""
    rollout_started: bool
    """A sample of its rollout was already trained, so it can no longer be dropped."""


def pending(store: Store, run_id: str) -> list[PendingSample]:
    """Pending samples in the order in which their groups became ready, then by place in the group."""
    sibling = schema.samples.alias("sibling")
    same_rollout = (sibling.c.group_id == _samples.group_id, sibling.c.member == _samples.member)
    started = exists().where(*same_rollout, sibling.c.status == "trained")
    query = (
        select(
            _samples.id,
            _samples.group_id,
            _groups.prompt_index,
            _rollouts.rollout_id,
            _groups.version,
            _samples.num_tokens,
            _samples.num_trained,
            _groups.ready_at,
            _groups.ready_order,
            _samples.position,
            started,
        )
        .select_from(_with_group_and_rollout())
        .where(_samples.run_id == run_id, _samples.status == "pending")
        .order_by(_groups.ready_order, _samples.position)
    )
    with store.read() as connection:
        return [PendingSample(*row) for row in connection.execute(query)]


def drop(attempt: Attempt, sample_ids: Sequence[int], reason: str) -> None:
    """Drop pending samples and with each the rest of its rollout.

    Raises StatusConflict when one is not pending, or when part of its rollout is trained already.
    """
    columns = (_samples.group_id, _samples.member)
    rollouts: set[tuple[int, int]] = set()
    with attempt.write() as connection:
        for ids in chunks(sorted(set(sample_ids))):
            still = (_samples.id.in_(ids), _samples.run_id == attempt.run_id, _samples.status == "pending")
            found = connection.execute(select(*columns).where(*still)).all()
            exactly(len(ids), len(found), "drop samples")
            rollouts |= {(row.group_id, row.member) for row in found}
        _drop_rollouts(connection, sorted(rollouts), reason)
        accounting.settle_groups(connection, [group_id for group_id, _ in rollouts])


def load(store: Store, sample_ids: Sequence[int]) -> list[TrainingSequence]:
    """The samples' tokens, advantages and versions, in the order of `sample_ids`."""
    loaded: dict[int, TrainingSequence] = {}
    with store.read() as connection:
        for ids in chunks(sorted(set(sample_ids)), 400):
            members = connection.execute(_select_members(ids)).all()
            sequences = _load_sequences(connection, members)
            loaded |= {row.id: _sequence(row, sequences[row.group_id, row.member]) for row in members}
    missing = set(sample_ids) - loaded.keys()
    if missing:
        raise StoreError(f"samples {sorted(missing)[:5]} are not in this store: the ids are of another one")
    return [loaded[sample_id] for sample_id in sample_ids]


def train(connection: Connection, run_id: str, sample_ids: Sequence[int], step: int) -> None:
    """Give pending samples to a step, inside its transaction. Raises StatusConflict when one is not pending."""
    for ids in chunks(sample_ids):
        still = (_samples.id.in_(ids), _samples.run_id == run_id, _samples.status == "pending")
        changed = connection.execute(update(schema.samples).where(*still).values(status="trained", step=step)).rowcount
        exactly(len(ids), changed, f"train samples in step {step}")
    _settle(connection, sample_ids)


def _drop_rollouts(connection: Connection, rollouts: Sequence[tuple[int, int]], reason: str) -> None:
    for keys in chunks(rollouts, 400):
        here = tuple_(_samples.group_id, _samples.member).in_(keys)
        if connection.execute(select(_samples.id).where(here, _samples.status == "trained").limit(1)).first():
            raise StatusConflict(f"a rollout cannot be dropped ({reason}): part of it is trained already")
        pending = (here, _samples.status == "pending")
        connection.execute(update(schema.samples).where(*pending).values(status="dropped", drop_reason=reason))


def _settle(connection: Connection, sample_ids: Sequence[int]) -> None:
    for ids in chunks(sample_ids):
        touched = connection.execute(select(_samples.group_id).where(_samples.id.in_(ids)).distinct()).scalars()
        accounting.settle_groups(connection, touched.all())


def _with_group_and_rollout() -> FromClause:
    rollout = and_(_rollouts.group_id == _samples.group_id, _rollouts.member == _samples.member)
    groups = schema.samples.join(schema.groups, _groups.id == _samples.group_id)
    return groups.join(schema.rollouts, rollout)


def _select_members(sample_ids: Sequence[int]) -> Select[Any]:
    columns = (_samples.id, _samples.group_id, _samples.member, _samples.part, _samples.num_tokens)
    context = (_groups.prompt_ids, _groups.version, _rollouts.rollout_id, _rollouts.advantage)
    return select(*columns, *context).select_from(_with_group_and_rollout()).where(_samples.id.in_(sample_ids))


def _load_sequences(
    connection: Connection, members: Sequence[Row[Any]]
) -> dict[tuple[int, int], list[TrainingSequence]]:
    """The samples without context of every rollout that `members` come from."""
    prompts = {(row.group_id, row.member): codec.decode_ints(row.prompt_ids).tolist() for row in members}
    query = select(schema.turns).where(tuple_(_turns.group_id, _turns.member).in_(list(prompts)))
    rows = connection.execute(query.order_by(_turns.group_id, _turns.member, _turns.turn))
    by_rollout = groupby(rows, key=lambda row: (row.group_id, row.member))
    return {rollout: build_sequences(read_turns(prompts[rollout], turns)) for rollout, turns in by_rollout}


def _sequence(row: Row[Any], sequences: Sequence[TrainingSequence]) -> TrainingSequence:
    part: int = row.part
    if part >= len(sequences) or sequences[part].num_tokens != row.num_tokens:
        raise StoreError(
            f"sample {row.id} was stored as part {part} with {row.num_tokens} tokens, but its turns give "
            f"{[sequence.num_tokens for sequence in sequences]}: this agrpo builds samples in another way than that one"
        )
    return replace(
        sequences[part],
        advantage=row.advantage,
        version=row.version,
        sample_id=row.id,
        group_id=row.group_id,
        rollout_id=row.rollout_id,
    )
