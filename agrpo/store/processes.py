"""Processes of a run: what the launcher started, adopted and saw end, and the heartbeats of their loops."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, delete, func, insert, select, update

from agrpo.store import accounting, schema
from agrpo.store.attempt import Attempt
from agrpo.store.host import boot_id, host_name
from agrpo.store.sql import exactly, inserted_id, put
from agrpo.store.store import Store

Kind = Literal["trainer", "worker", "server", "evaluator"]
_processes = schema.processes.c


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process as the launcher registered it; times are seconds since 1970."""

    id: int
    run_id: str
    token: int
    kind: Kind
    index: int
    host: str
    pid: int
    pgid: int
    pid_started: int
    """Clock ticks since boot."""
    boot_id: str
    state: Literal["running", "ended"]
    log_path: str
    restarts: int
    """How often this attempt had started the same process before."""
    exit_code: int | None
    reason: str | None
    started_at: float
    ended_at: float | None
    settings_hash: str | None
    url: str | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """When a loop inside a process last went round, in seconds since 1970."""

    kind: Kind
    index: int
    loop: str
    at: float
    detail: str | None


def register(
    attempt: Attempt,
    kind: Kind,
    index: int,
    pid: int,
    pgid: int,
    pid_started: int,
    log_path: str,
    settings_hash: str | None = None,
    url: str | None = None,
) -> int:
    """Note a process that runs on this host now; returns its number."""
    row: dict[str, Any] = {"run_id": attempt.run_id, "token": attempt.token, "kind": kind, "index": index}
    earlier = select(func.count()).where(*(_processes[name] == value for name, value in row.items()))
    row |= {"pid": pid, "pgid": pgid, "pid_started": pid_started, "host": host_name(), "boot_id": boot_id()}
    row |= {"log_path": log_path, "settings_hash": settings_hash, "url": url}
    with attempt.write() as connection:
        row["restarts"] = connection.execute(earlier).scalar_one()
        added = connection.execute(insert(schema.processes).values(**row, state="running", started_at=time.time()))
        return inserted_id(added)


def ended(attempt: Attempt, process_id: int, exit_code: int | None, reason: str) -> None:
    """Note the end of a process and free its claims. A second call changes nothing."""
    end = {"state": "ended", "exit_code": exit_code, "reason": reason.replace("\0", ""), "ended_at": time.time()}
    mine = (_processes.id == process_id, _processes.run_id == attempt.run_id, _processes.state == "running")
    with attempt.write() as connection:
        connection.execute(update(schema.processes).where(*mine).values(**end))
        connection.execute(delete(schema.workers).where(schema.workers.c.process_id == process_id))
        accounting.free_claims(connection, schema.groups.c.claimed_by == process_id)


def adopt(attempt: Attempt, process_id: int) -> None:
    """Make a running process of an earlier attempt this attempt's. Raises StatusConflict when it has ended."""
    running = (_processes.id == process_id, _processes.run_id == attempt.run_id, _processes.state == "running")
    with attempt.write() as connection:
        moved = connection.execute(update(schema.processes).where(*running).values(token=attempt.token))
        exactly(1, moved.rowcount, f"adopt process {process_id}")


def live(store: Store, run_id: str) -> list[ProcessRecord]:
    """Processes of any attempt whose end is not recorded."""
    return _load(store, run_id, _processes.state == "running")


def all(store: Store, run_id: str) -> list[ProcessRecord]:
    """Every process the run ever had, first to last."""
    return _load(store, run_id)


def beat(attempt: Attempt, process_kind: Kind, index: int, loop: str, detail: str | None = None) -> None:
    """Say that a loop is alive."""
    key = {"run_id": attempt.run_id, "kind": process_kind, "index": index, "loop": loop}
    with attempt.write() as connection:
        put(connection, schema.heartbeats, key, {"at": time.time(), "detail": detail})


def heartbeats(store: Store, run_id: str) -> list[Heartbeat]:
    """The last heartbeat of each loop."""
    beats = schema.heartbeats.c
    query = select(beats.kind, beats.index, beats.loop, beats.at, beats.detail).where(beats.run_id == run_id)
    with store.read() as connection:
        rows = connection.execute(query.order_by(beats.kind, beats.index, beats.loop))
        return [Heartbeat(*row) for row in rows]


def _load(store: Store, run_id: str, *conditions: ColumnElement[bool]) -> list[ProcessRecord]:
    query = select(schema.processes).where(_processes.run_id == run_id, *conditions).order_by(_processes.id)
    with store.read() as connection:
        return [ProcessRecord(**row._mapping) for row in connection.execute(query)]
