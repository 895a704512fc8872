"""Runs: one row a run, and what a person wants to know of it."""

import difflib
import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, Select, and_, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from agrpo.errors import BadInput, StatusConflict
from agrpo.store import accounting, leases, schema, streams
from agrpo.store.attempt import Attempt
from agrpo.store.json_text import to_floats
from agrpo.store.store import Store, command

Status = Literal["created", "running", "stopped", "failed", "finished"]
Request = Literal["none", "stop", "drain"]

_MAY_FOLLOW: dict[Status, tuple[Status, ...]] = {
    "created": (),
    "running": ("created", "running", "stopped", "failed"),
    "stopped": ("created", "running", "stopped"),
    "failed": ("created", "running", "stopped", "failed"),
    "finished": ("running", "finished"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the store has it now; times are seconds since 1970."""

    run_id: str
    status: Status
    config: dict[str, Any]
    config_hash: str
    run_dir: str
    token: int
    max_attempts: int
    policy_version: int
    allowance_tokens: int | None
    allowance_step: int | None
    request: Request
    next_prompt_index: int
    """First prompt index that nobody has claimed yet."""
    environment: dict[str, Any] | None
    error: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    forked_from: str | None
    """The run whose steps up to `forked_step` are also this one's."""
    forked_step: int | None
    data_fingerprint: str | None
    step: int
    """Last finished step, 0 before the first."""
    checkpoint_step: int | None
    checkpoint_path: str | None
    wall_s: float
    """Sum over the attempts of how long each held the run."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What `agrpo show` prints."""

    run_id: str
    status: Status
    step: int
    reward_first_fifth: float | None
    """Mean of the logged `reward` over the first fifth of the steps that have one, at least one step."""
    reward_last_fifth: float | None
    wall_s: float
    checkpoint: str | None
    groups: dict[str, int]
    """Groups by status."""
    samples: dict[str, int]
    """Samples by status."""
    attempts: int
    restarts: int
    """Processes that were started again inside an attempt."""
    error: str | None
    metrics: dict[str, float]
    """The last logged values."""


def create_run(
    store: Store, run_id: str, config: dict[str, Any], config_hash: str, run_dir: str, max_attempts: int = 20
) -> None:
    """Add a run in status created. Raises StatusConflict when its name is taken."""
    values = {"config": config, "config_hash": config_hash, "run_dir": run_dir, "max_attempts": max_attempts}
    start = {"token": 0, "policy_version": -1, "next_prompt_index": 0, "last_ready_order": 0}
    try:
        with store.write() as connection:
            connection.execute(
                insert(schema.runs).values(
                    run_id=run_id, status="created", request="none", created_at=time.time(), **values, **start
                )
            )
    except IntegrityError as error:
        raise StatusConflict(f"run {run_id!r} exists already: resume it, or choose another name") from error


def get_run(store: Store, run_id: str) -> Run:
    """The run; BadInput when there is none of that name."""
    run = find_run(store, run_id)
    if run is None:
        raise BadInput(f"there is no run {run_id!r} in this store: {_advice(store, run_id)}")
    return run


def _advice(store: Store, run_id: str) -> str:
    with store.read() as connection:
        known = connection.execute(select(schema.runs.c.run_id)).scalars().all()
    near = difflib.get_close_matches(run_id, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"`{command('runs', store.url)}` lists those that are"


def find_run(store: Store, run_id: str) -> Run | None:
    """The run, or None."""
    with store.read() as connection:
        found = _load(connection, _select_runs().where(schema.runs.c.run_id == run_id))
    return found[0] if found else None


def list_runs(store: Store) -> list[Run]:
    """Every run, newest first."""
    with store.read() as connection:
        return _load(connection, _select_runs().order_by(schema.runs.c.created_at.desc(), schema.runs.c.run_id))


def set_status(attempt: Attempt, status: Status, error: str | None = None) -> None:
    """Move the run to `status`. Raises StatusConflict when it cannot follow the present one; finished is final."""
    now, runs = time.time(), schema.runs
    times: dict[str, Any] = {"started_at": func.coalesce(runs.c.started_at, now), "finished_at": None}
    if status != "running":
        times = {"finished_at": now}
    with attempt.write() as connection:
        found = connection.execute(select(runs.c.status).where(runs.c.run_id == attempt.run_id)).scalar_one()
        if found not in _MAY_FOLLOW[status]:
            raise StatusConflict(f"run {attempt.run_id!r} is {found} and cannot become {status}")
        _update(connection, attempt.run_id, status=status, error=error and error.replace("\0", ""), **times)


def set_config(attempt: Attempt, config: dict[str, Any], config_hash: str) -> None:
    """Replace the settings by ones that decide the same."""
    with attempt.write() as connection:
        _update(connection, attempt.run_id, config=config, config_hash=config_hash)


def set_environment(attempt: Attempt, environment: dict[str, Any]) -> None:
    """Record what bitwise equality depends on."""
    with attempt.write() as connection:
        _update(connection, attempt.run_id, environment=environment)


def check_data(attempt: Attempt, fingerprint: str) -> None:
    """Note what the data set is; BadInput when it is no longer what the run began with.

    A fingerprint that says more than the one noted, in the same words, takes its place.
    """
    query = select(schema.runs.c.data_fingerprint).where(schema.runs.c.run_id == attempt.run_id)
    with attempt.write() as connection:
        known = connection.execute(query).scalar()
        is_same = known is None or fingerprint == known or fingerprint.startswith(f"{known}, ")
        if is_same and known != fingerprint:
            _update(connection, attempt.run_id, data_fingerprint=fingerprint)
    if not is_same:
        go_on = command(f"resume {attempt.run_id} --accept-new-data", attempt.store.url)
        raise BadInput(
            f"run {attempt.run_id!r} began with another data set ({known} then, {fingerprint} now), and its prompts "
            f"are known by their place: restore it, or go on with: {go_on}"
        )


def accept_data(store: Store, run_id: str) -> None:
    """Let the run go on with whatever data set it finds next; what it knows of the old one's stream is void.

    Raises LeaseHeld while somebody runs it, whose prompts are known by their place in the old data.
    """
    with store.write() as connection:
        leases.lock_free(connection, run_id)
        _update(connection, run_id, data_fingerprint=None)
        streams.forget(connection, run_id)


def set_allowance(attempt: Attempt, step: int, tokens: int) -> None:
    """Let the workers hold `tokens` sample tokens, as decided after `step`."""
    with attempt.write() as connection:
        _update(connection, attempt.run_id, allowance_step=step, allowance_tokens=tokens)


def request(store: Store, run_id: str, wish: Request) -> None:
    """Ask the run to stop or drain; any process may. A new attempt starts with "none"."""
    with store.write() as connection:
        _update(connection, run_id, request=wish)


def request_of(attempt: Attempt, wish: Request) -> None:
    """Ask this attempt alone: one that has been replaced asks nothing of the next."""
    with attempt.write() as connection:
        _update(connection, attempt.run_id, request=wish)


def allow_attempts(store: Store, run_id: str, max_attempts: int) -> None:
    """Raise the number of attempts that may end uncleanly, once the reason of the deaths is mended."""
    with store.write() as connection:
        _update(connection, run_id, max_attempts=max_attempts)


def trained_prompt_index(store: Store, run_id: str, step: int | None = None) -> int:
    """First prompt with a pending sample or never generated; with `step`, samples of later steps count as pending."""
    with store.read() as connection:
        return accounting.trained_prompt_index(connection, run_id, step)


def summary(store: Store, run_id: str) -> RunSummary:
    """The run in a few numbers, in milliseconds."""
    run = get_run(store, run_id)
    processes = schema.processes.c
    with store.read() as connection:
        first, last = _reward_fifths(connection, run_id)
        restarts = select(func.count()).where(processes.run_id == run_id, processes.restarts > 0)
        return RunSummary(
            run_id=run_id,
            status=run.status,
            step=run.step,
            reward_first_fifth=first,
            reward_last_fifth=last,
            wall_s=run.wall_s,
            checkpoint=run.checkpoint_path,
            groups=accounting.counts(connection, schema.groups, run_id),
            samples=accounting.counts(connection, schema.samples, run_id),
            attempts=run.token,
            restarts=connection.execute(restarts).scalar_one(),
            error=run.error,
            metrics=_last_metrics(connection, run_id),
        )


def _select_runs() -> Select[Any]:
    runs, steps, checkpoints = schema.runs, schema.steps, schema.checkpoints
    finished = select(func.coalesce(func.max(steps.c.step), 0)).where(
        steps.c.run_id == runs.c.run_id, steps.c.finished_at.is_not(None)
    )
    cursor = and_(checkpoints.c.run_id == runs.c.run_id, checkpoints.c.step == runs.c.checkpoint_step)
    return select(
        runs, finished.scalar_subquery().label("step"), checkpoints.c.path.label("checkpoint_path")
    ).select_from(runs.outerjoin(checkpoints, cursor))


def _load(connection: Connection, query: Select[Any]) -> list[Run]:
    rows = connection.execute(query).all()
    held = leases.held_s(connection, rows[0].run_id if len(rows) == 1 else None)
    return [_run(row, held.get(row.run_id, 0.0)) for row in rows]


def _run(row: Row[Any], wall_s: float) -> Run:
    values = dict(row._mapping)
    del values["last_ready_order"]
    return Run(**values, wall_s=wall_s)


def _update(connection: Connection, run_id: str, **values: Any) -> None:
    changed = connection.execute(update(schema.runs).where(schema.runs.c.run_id == run_id).values(**values)).rowcount
    if changed != 1:
        raise BadInput(f"there is no run {run_id!r} in this store: `agrpo runs` lists those that are")


def _reward_fifths(connection: Connection, run_id: str) -> tuple[float | None, float | None]:
    metrics = schema.metrics.c
    query = select(metrics.reward).where(metrics.run_id == run_id, metrics.reward.is_not(None)).order_by(metrics.step)
    rewards = connection.execute(query).scalars().all()
    if not rewards:
        return None, None
    fifth = max(1, len(rewards) // 5)
    return sum(rewards[:fifth]) / fifth, sum(rewards[-fifth:]) / fifth


def _last_metrics(connection: Connection, run_id: str) -> dict[str, float]:
    metrics = schema.metrics.c
    query = select(metrics["values"]).where(metrics.run_id == run_id).order_by(metrics.step.desc()).limit(1)
    return to_floats(connection.execute(query).scalar() or {})
