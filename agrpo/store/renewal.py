"""A run that has trained nothing takes other settings: what its earlier attempts made under the old ones is void."""

from typing import Any

from sqlalchemy import Connection, delete, exists, func, select, update

from agrpo.errors import StatusConflict
from agrpo.store import events, schema
from agrpo.store.attempt import Attempt
from agrpo.store.runs import Run
from agrpo.store.store import Store

_FRESH = {
    "policy_version": -1,
    "next_prompt_index": 0,
    "last_ready_order": 0,
    "allowance_tokens": None,
    "allowance_step": None,
    "environment": None,
    "data_fingerprint": None,
}


def is_renewable(store: Store, run: Run) -> bool:
    """Whether the run has fixed no step yet, of its own or of a run that it forked from, and is not finished."""
    with store.read() as connection:
        return run.status != "finished" and not _has_steps(connection, run.run_id)


def renew_settings(attempt: Attempt, config: dict[str, Any], config_hash: str, run_dir: str, changed: str) -> None:
    """Begin with other settings: prompts, rollouts and policies are forgotten, attempts and events stay.

    `changed` says what differs. Raises StatusConflict when a step is fixed already.
    """
    runs, run_id = schema.runs, attempt.run_id
    with attempt.write() as connection:
        if _has_steps(connection, run_id):
            raise StatusConflict(f"run {run_id!r} has trained meanwhile, with other settings: choose another name")
        _forget(connection, run_id)
        given = {"config": config, "config_hash": config_hash, "run_dir": run_dir}
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(**given, **_FRESH))
        message = f"no step was fixed yet: other settings hold now, and what was generated is void: {changed}"
        events.note(connection, attempt, "settings_changed", message)


def _has_steps(connection: Connection, run_id: str) -> bool:
    return connection.execute(select(func.count()).where(schema.steps.c.run_id == run_id)).scalar_one() > 0


def _forget(connection: Connection, run_id: str) -> None:
    own = select(schema.groups.c.id).where(schema.groups.c.run_id == run_id)
    for table in (schema.samples, schema.turns, schema.rollouts):
        connection.execute(delete(table).where(table.c.group_id.in_(own)))
    for table in (schema.groups, schema.policies, schema.stream_positions):
        connection.execute(delete(table).where(table.c.run_id == run_id))
    servers = schema.servers
    here = exists().where(servers.c.id == schema.policy_servers.c.server_id, servers.c.run_id == run_id)
    connection.execute(delete(schema.policy_servers).where(here))
    # Addresses are settings too; a server of our own that still lives may be adopted, with weights to be sent again.
    connection.execute(delete(servers).where(servers.c.run_id == run_id, servers.c.process_id.is_(None)))
    connection.execute(update(servers).where(servers.c.run_id == run_id).values(weight_version=None))
