"""Steps: which samples make an optimizer step, fixed before it is trained."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, select, update

from agrpo.errors import StatusConflict
from agrpo.store import events, samples, schema
from agrpo.store.attempt import Attempt
from agrpo.store.store import Store

Replay = Literal["new", "equal", "different"]
_steps, _step_samples = schema.steps.c, schema.step_samples.c


@dataclass(frozen=True, slots=True)
class StepRow:
    """The place of a sample in a step."""

    micro_batch: int
    rank: int
    position: int
    """Place in the row, from 0."""
    sample_id: int


def record(attempt: Attempt, step: int, rows: Sequence[StepRow], policy_version: int) -> None:
    """Fix the samples of the next step.

    Raises StatusConflict unless `step` follows the last recorded one and every sample is still pending.
    """
    run = attempt.run_id
    head = {"run_id": run, "step": step, "token": attempt.token, "policy_version": policy_version}
    members = [{"run_id": run, "step": step, **asdict(row)} for row in rows]
    with attempt.write() as connection:
        last = _last(connection, run)
        if step != last + 1:
            raise StatusConflict(f"step {step} cannot be recorded: the last recorded one is {last}")
        connection.execute(insert(schema.steps).values(**head, recorded_at=time.time()))
        samples.train(connection, run, [row.sample_id for row in rows], step)
        if members:
            connection.execute(insert(schema.step_samples), members)


def rows(store: Store, run_id: str, step: int) -> list[StepRow]:
    """The members of a recorded step by micro-batch, rank and position."""
    order = (_step_samples.micro_batch, _step_samples.rank, _step_samples.position)
    query = select(*order, _step_samples.sample_id).where(_step_samples.run_id == run_id, _step_samples.step == step)
    with store.read() as connection:
        return [StepRow(*row) for row in connection.execute(query.order_by(*order))]


def finish(attempt: Attempt, step: int, weight_digest: str, values: Mapping[str, float]) -> Replay:
    """Note the weights a recorded step made. "new", or for a replayed step "equal" or "different" weights.

    Different weights are an event and become the ones that later replays are compared with.
    """
    with attempt.write() as connection:
        finished_at, digest = _made(connection, attempt.run_id, step)
        made = {"weight_digest": weight_digest, "values": dict(values)}
        if finished_at is None:
            _update(connection, attempt.run_id, step, **made, finished_at=time.time())
            return "new"
        if digest == weight_digest:
            return "equal"
        _update(connection, attempt.run_id, step, **made)
        message = f"step {step} made other weights when it was replayed"
        events.note(connection, attempt, "replay_differs", message, step=step, was=digest, now=weight_digest)
        return "different"


def digests(store: Store, run_id: str) -> dict[int, str]:
    """Digest of the weights that each finished step made."""
    query = select(_steps.step, _steps.weight_digest).where(_steps.run_id == run_id, _steps.weight_digest.is_not(None))
    with store.read() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


def pruned(store: Store, run_id: str, after: int, until: int) -> int | None:
    """The last step in (after, until] some of whose tokens are no longer there; None: all can be made again."""
    groups, samples = schema.groups.c, schema.samples.c
    query = (
        select(func.max(_step_samples.step))
        .join(schema.samples, samples.id == _step_samples.sample_id)
        .join(schema.groups, groups.id == samples.group_id)
        .where(_step_samples.run_id == run_id, _step_samples.step > after, _step_samples.step <= until)
        .where(groups.pruned_at.is_not(None))
    )
    with store.read() as connection:
        return connection.execute(query).scalar()


def last_recorded(store: Store, run_id: str) -> int:
    """The last step whose samples are fixed; 0 for none."""
    with store.read() as connection:
        return _last(connection, run_id)


def last_finished(store: Store, run_id: str) -> int:
    """The last step whose weights were made; 0 for none."""
    with store.read() as connection:
        return _last(connection, run_id, _steps.finished_at.is_not(None))


def _last(connection: Connection, run_id: str, *conditions: Any) -> int:
    query = select(func.coalesce(func.max(_steps.step), 0)).where(_steps.run_id == run_id, *conditions)
    return int(connection.execute(query).scalar_one())


def _made(connection: Connection, run_id: str, step: int) -> tuple[float | None, str | None]:
    query = select(_steps.finished_at, _steps.weight_digest).where(_steps.run_id == run_id, _steps.step == step)
    found = connection.execute(query).one_or_none()
    if found is None:
        raise StatusConflict(f"step {step} cannot be finished: its samples were never recorded")
    return found.finished_at, found.weight_digest


def _update(connection: Connection, run_id: str, step: int, **values: Any) -> None:
    connection.execute(update(schema.steps).where(_steps.run_id == run_id, _steps.step == step).values(**values))
