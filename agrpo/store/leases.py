"""The lease on a run: who may work on it, under which token, until when."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, and_, case, func, insert, select, update

from agrpo.errors import AttemptsExhausted, BadInput, LeaseHeld
from agrpo.store import accounting, schema
from agrpo.store.attempt import Attempt
from agrpo.store.host import Holder, boot_clock_s, is_alive, same_boot, this_process
from agrpo.store.store import Store

__all__ = [
    "AttemptRecord",
    "Holder",
    "Outcome",
    "acquire",
    "attempts",
    "current",
    "held_s",
    "release",
    "renew",
    "this_process",
]

Outcome = Literal["finished", "stopped", "failed"]
_attempts, _runs = schema.attempts.c, schema.runs.c


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt at a run; times are the database clock's seconds since 1970."""

    token: int
    holder: Holder
    flow_run_id: str | None
    started_at: float
    renewed_at: float
    expires_at: float
    ended_at: float | None
    outcome: Outcome | None
    """None: still running, or it died."""


def acquire(
    store: Store,
    run_id: str,
    holder: Holder,
    ttl_s: float = 30.0,
    flow_run_id: str | None = None,
    silent: AttemptRecord | None = None,
) -> Attempt:
    """Take the run's lease with the next token; claims of earlier attempts and a person's old request are void.

    A dead holder on the same host is replaced at once, any other after its time, or when it is still as it was in
    `silent`: what the caller has watched for that long by a clock of its own, whatever wall clocks say.

    Raises LeaseHeld while another holder has it, AttemptsExhausted (and marks the run failed) when too many attempts
    ended uncleanly.
    """
    with store.write() as connection:
        token, max_attempts = _lock(connection, run_id)
        _check_free(connection, run_id, token, silent)
        exhausted = _num_unclean(connection, run_id) >= max_attempts
        if exhausted:
            _mark_exhausted(connection, run_id, max_attempts)
        else:
            _start(connection, run_id, token + 1, holder, ttl_s, flow_run_id)
    if exhausted:
        raise AttemptsExhausted(_exhausted(run_id, max_attempts))
    return Attempt(store, run_id, token + 1)


def refuse_held(store: Store, run_id: str) -> None:
    """Raise LeaseHeld while somebody who is alive has the run."""
    with store.write() as connection:
        lock_free(connection, run_id)


def lock_free(connection: Connection, run_id: str) -> None:
    """Keep everybody from taking a run until the transaction ends. Raises LeaseHeld while somebody has it."""
    token, _ = _lock(connection, run_id)
    _check_free(connection, run_id, token, None)


def renew(attempt: Attempt, ttl_s: float = 30.0) -> None:
    """Keep the lease for another `ttl_s` seconds. Raises LeaseLost after a takeover."""
    with attempt.write() as connection:
        connection.execute(update(schema.attempts).where(_is(attempt)).values(**_until(connection, ttl_s)))


def release(attempt: Attempt, outcome: Outcome) -> None:
    """Give the lease back, so that the next attempt need not wait."""
    with attempt.write() as connection:
        ended = {"ended_at": _now(connection), "outcome": outcome}
        connection.execute(update(schema.attempts).where(_is(attempt)).values(**ended))


def current(store: Store, run_id: str) -> Attempt | None:
    """The attempt that works on the run now; None while nobody does."""
    query = select(schema.attempts).join(schema.runs).where(_attempts.run_id == run_id, _attempts.token == _runs.token)
    with store.read() as connection:
        row = connection.execute(query.where(_attempts.ended_at.is_(None))).one_or_none()
        return None if row is None or _left_s(connection, row) <= 0 else Attempt(store, run_id, row.token)


def attempts(store: Store, run_id: str) -> list[AttemptRecord]:
    """Every attempt at the run, first to last."""
    query = select(schema.attempts).where(_attempts.run_id == run_id).order_by(_attempts.token)
    with store.read() as connection:
        return [_record(row) for row in connection.execute(query)]


def held_s(connection: Connection, run_id: str | None) -> dict[str, float]:
    """Seconds that the attempts held each run (or one run); an attempt that died counts to its last renewal."""
    now = _now(connection)
    alive = and_(_attempts.token == _runs.token, _attempts.expires_at > now)
    until = case((_attempts.ended_at.is_not(None), _attempts.ended_at), (alive, now), else_=_attempts.renewed_at)
    held = case((until > _attempts.started_at, until - _attempts.started_at), else_=0.0)  # a clock may be set back
    query = select(_attempts.run_id, func.sum(held)).join(schema.runs)
    if run_id is not None:
        query = query.where(_attempts.run_id == run_id)
    return {row[0]: row[1] for row in connection.execute(query.group_by(_attempts.run_id))}


def _lock(connection: Connection, run_id: str) -> tuple[int, int]:
    """The run's token and attempt limit, its row held until the transaction ends."""
    query = select(_runs.token, _runs.max_attempts).where(_runs.run_id == run_id).with_for_update()
    run = connection.execute(query).one_or_none()
    if run is None:
        raise BadInput(f"there is no run {run_id!r} in this store: `agrpo runs` lists those that are")
    return run.token, run.max_attempts


def _check_free(connection: Connection, run_id: str, token: int, silent: AttemptRecord | None) -> None:
    query = select(schema.attempts).where(_attempts.run_id == run_id, _attempts.token == token)
    row = connection.execute(query).one_or_none()
    if row is None or row.ended_at is not None or _record(row) == silent:
        return
    holder = _record(row).holder
    left_s = _left_s(connection, row)
    if left_s > 0:
        raise LeaseHeld(
            f"run {run_id!r} is held by process {holder.pid} on {holder.host} (attempt {token}) for {left_s:.0f} s "
            "unless it renews: wait, or stop that process"
        )


def _left_s(connection: Connection, row: Row[Any]) -> float:
    """For how long an attempt that has not ended is still owned; 0 or less when its holder is dead or silent."""
    holder = _record(row).holder
    if same_boot(holder):
        return float(row.expires_boot_s) - boot_clock_s() if is_alive(holder) else 0.0
    return float(row.expires_at) - _now(connection)


def _num_unclean(connection: Connection, run_id: str) -> int:
    unclean = func.coalesce(_attempts.outcome, "died").in_(("died", "failed"))
    return connection.execute(select(func.count()).where(_attempts.run_id == run_id, unclean)).scalar_one()


def _mark_exhausted(connection: Connection, run_id: str, max_attempts: int) -> None:
    failed = {"status": "failed", "error": _exhausted(run_id, max_attempts), "finished_at": time.time()}
    connection.execute(update(schema.runs).where(_runs.run_id == run_id).values(**failed))


def _exhausted(run_id: str, max_attempts: int) -> str:
    return f"run {run_id!r} died or failed in {max_attempts} attempts, its limit: read its events, then raise the limit"


def _start(
    connection: Connection, run_id: str, token: int, holder: Holder, ttl_s: float, flow_run_id: str | None
) -> None:
    who = {"host": holder.host, "pid": holder.pid, "pid_started": holder.pid_started, "boot_id": holder.boot_id}
    until = _until(connection, ttl_s)
    connection.execute(
        insert(schema.attempts).values(
            run_id=run_id, token=token, flow_run_id=flow_run_id, started_at=until["renewed_at"], **who, **until
        )
    )
    connection.execute(update(schema.runs).where(_runs.run_id == run_id).values(token=token, request="none"))
    accounting.free_claims(connection, schema.groups.c.run_id == run_id)


def _until(connection: Connection, ttl_s: float) -> dict[str, float]:
    now = _now(connection)
    return {"renewed_at": now, "expires_at": now + ttl_s, "expires_boot_s": boot_clock_s() + ttl_s}


def _now(connection: Connection) -> float:
    """The clock that hosts share: the database server's; a SQLite file is used from one host."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def _is(attempt: Attempt) -> Any:
    return and_(_attempts.run_id == attempt.run_id, _attempts.token == attempt.token)


def _record(row: Row[Any]) -> AttemptRecord:
    return AttemptRecord(
        token=row.token,
        holder=Holder(row.host, row.pid, row.pid_started, row.boot_id),
        flow_run_id=row.flow_run_id,
        started_at=row.started_at,
        renewed_at=row.renewed_at,
        expires_at=row.expires_at,
        ended_at=row.ended_at,
        outcome=row.outcome,
    )
