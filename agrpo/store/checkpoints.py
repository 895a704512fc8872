"""Checkpoints that are complete on disk, and the cursor: the one a restart resumes from."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Select, delete, select, update

from agrpo.errors import StatusConflict
from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.sql import exactly, put
from agrpo.store.store import Store

_checkpoints, _runs = schema.checkpoints.c, schema.runs.c


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A complete checkpoint."""

    step: int
    path: str
    digest: str
    trained_prompt_index: int
    """First prompt not yet wholly trained or dropped at that step."""
    created_at: float
    """Seconds since 1970."""


def place(attempt: Attempt, step: int, path: str, trained_prompt_index: int, move: Callable[[], str]) -> None:
    """Name a complete folder and make it the cursor, in one transaction.

    `trained_prompt_index` is what the folder itself says. `move` brings it to `path` and returns its digest. It is
    called while nobody can take over the run, so that a process that was frozen and has lost it never replaces a folder
    that its successor has named.
    """
    with attempt.write() as connection:
        row = {"path": path, "digest": move(), "trained_prompt_index": trained_prompt_index, "created_at": time.time()}
        put(connection, schema.checkpoints, {"run_id": attempt.run_id, "step": step}, row)
        connection.execute(update(schema.runs).where(_runs.run_id == attempt.run_id).values(checkpoint_step=step))


def cursor(store: Store, run_id: str) -> CheckpointRow | None:
    """The checkpoint a restart resumes from; None before the first."""
    query = _select(run_id).join(schema.runs, _runs.run_id == _checkpoints.run_id)
    with store.read() as connection:
        row = connection.execute(query.where(_runs.checkpoint_step == _checkpoints.step)).one_or_none()
    return CheckpointRow(*row) if row else None


def all(store: Store, run_id: str) -> list[CheckpointRow]:
    """Every known checkpoint by step."""
    with store.read() as connection:
        return [CheckpointRow(*row) for row in connection.execute(_select(run_id).order_by(_checkpoints.step))]


def fall_back(attempt: Attempt, step: int) -> None:
    """Resume from an older checkpoint, or from the beginning (0): take back the names of all later ones."""
    later = (_checkpoints.run_id == attempt.run_id, _checkpoints.step > step)
    with attempt.write() as connection:
        connection.execute(
            update(schema.runs).where(_runs.run_id == attempt.run_id).values(checkpoint_step=step or None)
        )
        connection.execute(delete(schema.checkpoints).where(*later))


def forget(attempt: Attempt, step: int) -> None:
    """Take back the name of a checkpoint, before its folder is deleted. Raises StatusConflict for the cursor."""
    here = (_checkpoints.run_id == attempt.run_id, _checkpoints.step == step)
    with attempt.write() as connection:
        at = connection.execute(select(_runs.checkpoint_step).where(_runs.run_id == attempt.run_id)).scalar()
        if at == step:
            raise StatusConflict(f"checkpoint {step} is the one run {attempt.run_id!r} resumes from: keep it")
        exactly(1, connection.execute(delete(schema.checkpoints).where(*here)).rowcount, f"forget checkpoint {step}")


def while_owned(attempt: Attempt, act: Callable[[int, set[str]], None]) -> None:
    """Call `act` with the cursor's step (0: none) and the names of all named folders; nobody takes over meanwhile."""
    with attempt.write() as connection:
        at = connection.execute(select(_runs.checkpoint_step).where(_runs.run_id == attempt.run_id)).scalar()
        act(at or 0, {Path(row.path).name for row in connection.execute(_select(attempt.run_id))})


def _select(run_id: str) -> Select[Any]:
    columns = (_checkpoints[name] for name in CheckpointRow.__slots__)
    return select(*columns).where(_checkpoints.run_id == run_id)
