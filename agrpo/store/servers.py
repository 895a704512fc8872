"""vLLM servers of a run and the policy version that each of them confirmed."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, delete, insert, select, update

from agrpo.store import schema
from agrpo.store.attempt import Attempt
from agrpo.store.sql import exactly, inserted_id, put
from agrpo.store.store import Store

State = Literal["starting", "healthy", "lost"]
_servers = schema.servers.c


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server; the workers use it when it is healthy and its weight version is known."""

    id: int
    url: str
    index: int
    process_id: int | None
    """None: given by URL, never killed."""
    state: State
    weight_version: int | None
    """The policy version it confirmed; None: unknown, so it must be published to again."""
    info: dict[str, Any]


def register(
    attempt: Attempt, url: str, index: int, process_id: int | None = None, info: dict[str, Any] | None = None
) -> int:
    """Note a server as starting. Its weights stay known only while the same launched process serves the url."""
    row = {"index": index, "process_id": process_id, "state": "starting", "info": info or {}}
    with attempt.write() as connection:
        found = connection.execute(
            select(_servers.id, _servers.process_id).where(_servers.run_id == attempt.run_id, _servers.url == url)
        ).one_or_none()
        if found is None:
            return inserted_id(connection.execute(insert(schema.servers).values(run_id=attempt.run_id, url=url, **row)))
        if process_id is None or found.process_id != process_id:
            row["weight_version"] = None
        _update(connection, attempt, found.id, **row)
        return int(found.id)


def forget_given(attempt: Attempt, besides: str) -> None:
    """Forget servers that were given by another URL than this one: nobody is to publish to them any more."""
    others = (_servers.run_id == attempt.run_id, _servers.process_id.is_(None), _servers.url != besides)
    confirmed = schema.policy_servers
    with attempt.write() as connection:
        ids = select(_servers.id).where(*others)
        connection.execute(delete(confirmed).where(confirmed.c.server_id.in_(ids)))
        connection.execute(delete(schema.servers).where(*others))


def confirm_version(attempt: Attempt, server_id: int, version: int, process_id: int | None = None) -> bool:
    """Record that the server said it serves this policy version.

    False, and nothing recorded, when another process than `process_id` (if given) serves there by now.
    """
    with attempt.write() as connection:
        now = connection.execute(select(_servers.process_id).where(_servers.id == server_id)).scalar()
        if process_id is not None and now != process_id:
            return False
        _update(connection, attempt, server_id, weight_version=version)
        key = {"server_id": server_id, "version": version}
        put(connection, schema.policy_servers, key, {"confirmed_at": time.time()})
        return True


def doubt(attempt: Attempt, server_id: int) -> None:
    """Record that nobody knows which weights the server has; it gets no work until they are sent again."""
    with attempt.write() as connection:
        _update(connection, attempt, server_id, weight_version=None)


def set_state(attempt: Attempt, server_id: int, state: State) -> None:
    """Record whether the server answers. One that was lost may come back with other weights."""
    values: dict[str, Any] = {"state": state}
    if state == "lost":
        values["weight_version"] = None
    with attempt.write() as connection:
        _update(connection, attempt, server_id, **values)


def servers(store: Store, run_id: str) -> list[ServerRecord]:
    """Every server of the run by index."""
    query = select(schema.servers).where(_servers.run_id == run_id).order_by(_servers.index, _servers.id)
    with store.read() as connection:
        rows = [dict(row._mapping) for row in connection.execute(query)]
    return [ServerRecord(**{name: row[name] for name in ServerRecord.__slots__}) for row in rows]


def healthy(store: Store, run_id: str) -> list[ServerRecord]:
    """The servers that answer, by index."""
    return [server for server in servers(store, run_id) if server.state == "healthy"]


def _update(connection: Connection, attempt: Attempt, server_id: int, **values: Any) -> None:
    mine = (_servers.id == server_id, _servers.run_id == attempt.run_id)
    changed = connection.execute(update(schema.servers).where(*mine).values(**values)).rowcount
    exactly(1, changed, f"update server {server_id}")
