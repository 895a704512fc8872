"""Logged metrics, one row a step, and the windows of measurements that workers append."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select

from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.json_text import to_floats
from agrpo.store.processes import Kind
from agrpo.store.store import Store

_metrics, _windows = schema.metrics.c, schema.windows.c


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """What a process measured since its window before."""

    id: int
    kind: Kind
    index: int
    values: dict[str, float]
    at: float
    """Seconds since 1970."""


def log(attempt: Attempt, step: int, values: Mapping[str, float]) -> None:
    """Log the values of a step. A step is logged once: a second call, as in a replay, changes nothing."""
    numbers = {name: float(value) for name, value in values.items()}
    reward = numbers.get("reward")
    if reward is not None and not math.isfinite(reward):
        reward = None
    key = {"run_id": attempt.run_id, "step": step}
    with attempt.write() as connection:
        logged = select(_metrics.step).where(_metrics.run_id == attempt.run_id, _metrics.step == step)
        if connection.execute(logged).first() is None:
            row = {"values": numbers, "reward": reward, "logged_at": time.time()}
            connection.execute(insert(schema.metrics).values(**key, **row))


def series(store: Store, run_id: str, last: int | None = None) -> list[tuple[int, dict[str, float]]]:
    """Step and values of every logged step, or of the last so many, in order."""
    query = select(_metrics.step, _metrics["values"]).where(_metrics.run_id == run_id)
    with store.read() as connection:
        rows = connection.execute(query.order_by(_metrics.step.desc()).limit(last)).all()
    return [(step, to_floats(values)) for step, values in reversed(rows)]


def logged_at(store: Store, run_id: str) -> list[tuple[int, float]]:
    """Every logged step and when it was logged, in seconds since 1970, in order."""
    query = select(_metrics.step, _metrics.logged_at).where(_metrics.run_id == run_id).order_by(_metrics.step)
    with store.read() as connection:
        return [(step, at) for step, at in connection.execute(query)]


def window(attempt: Attempt, process_kind: Kind, index: int, values: Mapping[str, float]) -> None:
    """Append a window of gauges and counts."""
    numbers = {name: float(value) for name, value in values.items()}
    row = {"run_id": attempt.run_id, "kind": process_kind, "index": index, "values": numbers, "at": time.time()}
    with attempt.write() as connection:
        connection.execute(insert(schema.windows).values(**row))


def last_window(store: Store, run_id: str) -> int:
    """Id of the newest window; 0 without any."""
    query = select(func.coalesce(func.max(_windows.id), 0)).where(_windows.run_id == run_id)
    with store.read() as connection:
        return int(connection.execute(query).scalar_one())


def forget_windows(attempt: Attempt, until: int) -> None:
    """Delete windows before this id: they are in the metrics of a step by now.

    The one that was counted last stays, or SQLite would give its id, and those before it, to the next ones.
    """
    with attempt.write() as connection:
        old = (_windows.run_id == attempt.run_id, _windows.id < until)
        connection.execute(delete(schema.windows).where(*old))


def windows_since(store: Store, run_id: str, id: int) -> list[StoredWindow]:
    """Windows with a greater id than this one; 0 gives all."""
    query = select(_windows.id, _windows.kind, _windows.index, _windows["values"], _windows.at)
    query = query.where(_windows.run_id == run_id, _windows.id > id).order_by(_windows.id)
    with store.read() as connection:
        rows = connection.execute(query).all()
    return [StoredWindow(id, kind, index, to_floats(values), at) for id, kind, index, values, at in rows]
