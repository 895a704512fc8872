"""Evaluations of a run's weights, sample by sample, and the promotions that followed from them."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.sql import inserted_id
from agrpo.store.store import Store

if TYPE_CHECKING:
    from agrpo.records import Message  # numpy, which `show` need not load

_evaluations, _samples, _promotions = (
    schema.evaluations.c,
    schema.evaluation_samples.c,
    schema.promotions.c,
)
Writer = Store | Attempt
"""An attempt for what its run evaluates, so that one that was replaced adds nothing; else the store."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One policy on one set of prompts."""

    id: int
    run_id: str
    step: int
    model: str
    tasks: str
    begun_at: float
    finished_at: float | None
    values: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One sample of one prompt."""

    row_index: int
    sample: int
    completion: "list[Message]"
    rewards: dict[str, float | None]
    reward: float


@dataclass(frozen=True, slots=True)
class Promotion:
    """What became of a candidate, and why."""

    lineage: str
    run_id: str
    candidate: str
    baseline: str
    promoted: bool
    reason: str
    numbers: dict[str, float]
    at: float = 0.0


def begin(writer: Writer, run_id: str, step: int, model: str, tasks: str) -> int:
    """Note an evaluation that begins now; its number."""
    row = {"run_id": run_id, "step": step, "model": model, "tasks": tasks, "begun_at": time.time()}
    with writer.write() as connection:
        return inserted_id(connection.execute(insert(schema.evaluations).values(**row)))


def add(writer: Writer, evaluation_id: int, answers: Sequence[ScoredAnswer]) -> None:
    """Store the scored answers of a prompt."""
    rows = [{"evaluation_id": evaluation_id, **asdict(answer)} for answer in answers]
    with writer.write() as connection:
        connection.execute(insert(schema.evaluation_samples), rows)


def finish(writer: Writer, evaluation_id: int, values: dict[str, Any]) -> None:
    """Every prompt is scored: note the result."""
    done = {"finished_at": time.time(), "values": values}
    with writer.write() as connection:
        connection.execute(update(schema.evaluations).where(_evaluations.id == evaluation_id).values(**done))


def finished(store: Store, model: str, tasks: str) -> Evaluation | None:
    """The newest finished evaluation of these weights on these tasks."""
    query = select(schema.evaluations).where(_evaluations.model == model, _evaluations.tasks == tasks)
    query = query.where(_evaluations.finished_at.is_not(None)).order_by(_evaluations.id.desc()).limit(1)
    with store.read() as connection:
        found = connection.execute(query).one_or_none()
    return None if found is None else Evaluation(**found._mapping)


def of_run(store: Store, run_id: str) -> list[Evaluation]:
    """Finished evaluations of a run, first to last."""
    query = select(schema.evaluations).where(_evaluations.run_id == run_id, _evaluations.finished_at.is_not(None))
    with store.read() as connection:
        return [Evaluation(**row._mapping) for row in connection.execute(query.order_by(_evaluations.id))]


def scores(store: Store, evaluation_id: int) -> dict[int, list[float]]:
    """Rewards of every sample by row."""
    query = select(_samples.row_index, _samples.reward).where(_samples.evaluation_id == evaluation_id)
    found: dict[int, list[float]] = {}
    with store.read() as connection:
        for row_index, reward in connection.execute(query.order_by(_samples.row_index, _samples.sample)):
            found.setdefault(row_index, []).append(reward)
    return found


def decide(store: Store, promotion: Promotion) -> Promotion:
    """Note a decision, once for a run of a lineage; the one that stands."""
    made = replace(promotion, at=time.time())
    run = select(schema.runs.c.run_id).where(schema.runs.c.run_id == promotion.run_id)
    with store.write() as connection:
        connection.execute(run.with_for_update())  # of two at once, one waits
        for known in _promotions_of(connection, promotion.lineage):
            if known.run_id == promotion.run_id:
                return known
        connection.execute(insert(schema.promotions).values(**asdict(made)))
    return made


def promotions(store: Store, lineage: str) -> list[Promotion]:
    """Decisions of a recurring training, first to last."""
    with store.read() as connection:
        return _promotions_of(connection, lineage)


def _promotions_of(connection: Connection, lineage: str) -> list[Promotion]:
    columns = [_promotions[name] for name in Promotion.__slots__]
    query = select(*columns).where(_promotions.lineage == lineage).order_by(_promotions.id)
    return [Promotion(*row) for row in connection.execute(query)]
