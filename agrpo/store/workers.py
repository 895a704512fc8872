"""What each rollout worker says of itself, so that the trainer knows whether more samples can come."""

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

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


def bounds(store: Store, run_id: str) -> Bounds:
    """Read it with one statement: workers ask after every group."""
    runs, samples = schema.runs.c, schema.samples.c
    pending = select(func.coalesce(func.sum(samples.num_tokens), 0)).where(
        samples.run_id == run_id, samples.status == "pending"
    )
    query = select(
        *(runs[name] for name in Bounds.__slots__ if name != "pending_tokens"), pending.scalar_subquery()
    ).where(runs.run_id == run_id)
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
    workers, processes, runs = schema.workers.c, schema.processes.c, schema.runs.c
    query = (
        select(*(workers[name] for name in WorkerState.__slots__))
        .select_from(schema.workers.join(schema.processes, workers.process_id == processes.id))
        .join(schema.runs, processes.run_id == runs.run_id)
        .where(workers.run_id == run_id, processes.state == "running", processes.token == runs.token)
        .order_by(workers.process_id)
    )
    with store.read() as connection:
        return [WorkerState(*row) for row in connection.execute(query)]
