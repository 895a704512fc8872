"""A new run that begins with the first steps of another one: it shares their rows, and goes its own way after them."""

import time
from typing import Any

from sqlalchemy import Connection, Integer, Select, Text, and_, exists, func, insert, literal, null, or_, select, update

from agrpo.errors import BadInput, StatusConflict
from agrpo.store import accounting, runs, schema
from agrpo.store.columns import Id
from agrpo.store.store import Store

_groups, _samples, _steps, _members = (
    schema.groups.c,
    schema.samples.c,
    schema.steps.c,
    schema.step_samples.c,
)


def fork(
    store: Store,
    parent_id: str,
    step: int,
    run_id: str,
    config: dict[str, Any],
    config_hash: str,
    run_dir: str,
    checkpoint: tuple[str, str] | None,
) -> None:
    """Make a run whose steps up to `step` are the parent's, and whose cursor is `checkpoint` (path and digest).

    Prompts that the parent had consumed by then stand as its groups; others in between are generated anew. Raises
    BadInput for a step that is not finished or a missing checkpoint, StatusConflict when the name is taken.
    """
    if step > 0 and checkpoint is None:
        raise BadInput(f"a run cannot begin at step {step} of {parent_id!r} without a checkpoint of it")
    if runs.find_run(store, run_id) is not None:
        raise StatusConflict(f"run {run_id!r} exists already: choose another name")
    with store.write() as connection:
        # The parent's own processes wait: one of them may be pruning what is about to be shared.
        connection.execute(select(schema.runs.c.run_id).where(schema.runs.c.run_id == parent_id).with_for_update())
        finished_at = _finished_at(connection, parent_id, step)
        head = {"config": config, "config_hash": config_hash, "run_dir": run_dir, "max_attempts": 20}
        start = {"token": 0, "policy_version": -1, "next_prompt_index": 0, "last_ready_order": 0}
        origin = {"forked_from": parent_id, "forked_step": step, "checkpoint_step": step or None}
        origin |= {"data_fingerprint": _fingerprint(connection, parent_id, config)}
        row = {"run_id": run_id, "status": "created", "request": "none", "created_at": time.time()}
        connection.execute(insert(schema.runs).values(**row, **head, **start, **origin))
        _copy_steps(connection, parent_id, run_id, step)
        _copy_groups(connection, parent_id, run_id, step, finished_at)
        if checkpoint is not None:
            path, digest = checkpoint
            _add_cursor(connection, run_id, step, path, digest)


def _fingerprint(connection: Connection, parent_id: str, config: dict[str, Any]) -> str | None:
    """What the data was, if it is to be the parent's."""
    columns = schema.runs.c
    query = select(columns.config, columns.data_fingerprint).where(columns.run_id == parent_id)
    parents, fingerprint = connection.execute(query).one()
    return fingerprint if config.get("data") == parents.get("data") else None


def _finished_at(connection: Connection, parent_id: str, step: int) -> float:
    """When the step was finished; the beginning of time for step 0."""
    if step == 0:
        return 0.0
    query = select(_steps.finished_at).where(_steps.run_id == parent_id, _steps.step == step)
    found = connection.execute(query).scalar()
    if found is None:
        raise BadInput(f"run {parent_id!r} has not finished step {step}: fork from an earlier one")
    return float(found)


def _copy_steps(connection: Connection, parent_id: str, run_id: str, step: int) -> None:
    """The same steps with the same samples, whose rows stay the parent's."""
    for table, columns in ((schema.steps, _steps), (schema.step_samples, _members)):
        others = [column for column in columns if column.name != "run_id"]
        found = select(literal(run_id, Text), *others).where(columns.run_id == parent_id, columns.step <= step)
        names = ["run_id", *(column.name for column in others)]
        connection.execute(insert(table).from_select(names, found))


def _copy_groups(connection: Connection, parent_id: str, run_id: str, step: int, finished_at: float) -> None:
    """Consumed prompts stand as the parent's groups, the others before the last of them as free claims."""
    shared = func.coalesce(_groups.shared_group_id, _groups.id)
    trained = exists().where(_samples.group_id == shared, _samples.status == "trained", _samples.step <= step)
    unusable = and_(_groups.status == "dropped", _groups.drop_reason.is_not(None), _groups.ready_at <= finished_at)
    consumed = or_(trained, unusable)
    here = _groups.run_id == parent_id
    last = connection.execute(select(func.max(_groups.prompt_index)).where(here, consumed)).scalar()
    if last is None:
        return
    taken: Select[Any] = select(
        literal(run_id, Text), _groups.prompt_index, _groups.status, _groups.drop_reason, _groups.claimed_at,
        _groups.row_index, _groups.epoch, _groups.version, _groups.ready_at, shared,
    ).where(here, consumed)  # fmt: skip
    free: Select[Any] = select(
        literal(run_id, Text), _groups.prompt_index, literal("claimed", Text), null().cast(Text), _groups.claimed_at,
        null().cast(Id), null().cast(Integer), null().cast(Integer), null().cast(schema.groups.c.ready_at.type),
        null().cast(Id),
    ).where(here, ~consumed, _groups.prompt_index < last)  # fmt: skip
    names = ["run_id", "prompt_index", "status", "drop_reason", "claimed_at", "row_index", "epoch", "version"]
    for found in (taken, free):
        connection.execute(insert(schema.groups).from_select([*names, "ready_at", "shared_group_id"], found))
    _settle(connection, run_id, last)


def _settle(connection: Connection, run_id: str, last: int) -> None:
    """A group that the parent has trained in part only by then is consumed as a whole."""
    groups, runs_ = schema.groups, schema.runs
    here = groups.c.run_id == run_id
    connection.execute(update(groups).where(here, groups.c.status == "ready").values(status="trained"))
    connection.execute(update(runs_).where(runs_.c.run_id == run_id).values(next_prompt_index=last + 1))


def _add_cursor(connection: Connection, run_id: str, step: int, path: str, digest: str) -> None:
    index = accounting.trained_prompt_index(connection, run_id, step)
    row = {"run_id": run_id, "step": step, "path": path, "digest": digest, "trained_prompt_index": index}
    connection.execute(insert(schema.checkpoints).values(**row, created_at=time.time()))
