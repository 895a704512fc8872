"""Published policy versions."""

import time
from dataclasses import dataclass

from sqlalchemy import insert, select, update

from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.sql import exactly
from agrpo.store.store import Store


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A published version."""

    version: int
    step: int
    """The step that made it; 0: the weights the run started with."""
    digest: str
    published_at: float
    """Seconds since 1970."""


def current_version(store: Store, run_id: str) -> int:
    """The last published version, -1 before the first."""
    query = select(schema.runs.c.policy_version).where(schema.runs.c.run_id == run_id)
    with store.read() as connection:
        return int(connection.execute(query).scalar_one())


def publish(attempt: Attempt, version: int, step: int, digest: str) -> None:
    """Make `version` the current one. Raises StatusConflict unless it follows the current version."""
    runs = schema.runs.c
    with attempt.write() as connection:
        moved = connection.execute(
            update(schema.runs)
            .where(runs.run_id == attempt.run_id, runs.policy_version == version - 1)
            .values(policy_version=version)
        )
        exactly(1, moved.rowcount, f"publish policy version {version}")
        row = {"version": version, "step": step, "digest": digest, "published_at": time.time()}
        connection.execute(insert(schema.policies).values(run_id=attempt.run_id, **row))


def policies(store: Store, run_id: str) -> list[PolicyRow]:
    """Every published version, first to last."""
    table = schema.policies.c
    query = select(table.version, table.step, table.digest, table.published_at).where(table.run_id == run_id)
    with store.read() as connection:
        return [PolicyRow(*row) for row in connection.execute(query.order_by(table.version))]
