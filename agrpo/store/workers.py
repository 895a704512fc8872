"""What each rollout worker says of itself, so that the trainer knows whether more samples can come."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.sql import put
from agrpo.store.store import Store


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's word about itself."""

    process_id: int
    in_flight: int
    """Groups being generated or scored."""
    admission_open: bool
    data_ended: bool
    allowance_step_seen: int
    """runs.allowance_step that the flags refer to."""
    at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds a worker, read at one moment."""

    policy_version: int
    next_prompt_index: int
    """First prompt index that nobody has claimed yet."""
    allowance_tokens: int | None
    """None until the trainer has set the first one."""
    allowance_step: int | None
    request: str
    """Whether somebody asked the run to stop or drain."""
    pending_tokens: int
    """Of all samples that wait to be trained."""
    num_elsewhere: int | None
    """Groups that other workers have in flight; None: there is no other worker."""


def bounds(store: Store, run_id: str, process_id: int) -> Bounds:
    """Read it for one worker, with one statement: workers ask after every group."""
    runs, samples, workers = schema.runs.c, schema.samples.c, schema.workers.c
    pending = select(func.coalesce(func.sum(samples.num_tokens), 0)).where(
        samples.run_id == run_id, samples.status == "pending"
    )
    elsewhere = _living(select(func.sum(workers.in_flight)), run_id).where(workers.process_id != process_id)
    of_run = [runs[name] for name in Bounds.__slots__ if name in runs]
    query = select(*of_run, pending.scalar_subquery(), elsewhere.scalar_subquery()).where(runs.run_id == run_id)
    with store.read() as connection:
        found: tuple[Any, ...] = tuple(connection.execute(query).one())
    return Bounds(*found)


def state(
    attempt: Attempt,
    process_id: int,
    in_flight: int,
    admission_open: bool,
    data_ended: bool,
    allowance_step_seen: int,
) -> None:
    """Replace what this worker last said."""
    row: dict[str, Any] = {"in_flight": in_flight, "admission_open": admission_open, "data_ended": data_ended}
    row |= {"allowance_step_seen": allowance_step_seen, "run_id": attempt.run_id}
    with attempt.write() as connection:
        put(connection, schema.workers, {"process_id": process_id}, row | {"at": time.time()})


def states(store: Store, run_id: str) -> list[WorkerState]:
    """The words of the workers that live under the present attempt."""
    workers = schema.workers.c
    query = _living(select(*(workers[name] for name in WorkerState.__slots__)), run_id)
    with store.read() as connection:
        return [WorkerState(*row) for row in connection.execute(query.order_by(workers.process_id))]


def _living(query: Select[Any], run_id: str) -> Select[Any]:
    """A query about the workers that live under the present attempt."""
    workers, processes, attempt = schema.workers.c, schema.processes.c, schema.runs.alias("attempt")
    return (
        query.select_from(schema.workers.join(schema.processes, workers.process_id == processes.id))
        .join(attempt, processes.run_id == attempt.c.run_id)
        .where(workers.run_id == run_id, processes.state == "running", processes.token == attempt.c.token)
    )
