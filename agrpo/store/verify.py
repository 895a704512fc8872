"""Does a run's ledger hold? Looks at all of it, in one transaction, and changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Connection, func, select, text

from agrpo.store import checks, runs, schema
from agrpo.store.payload_check import Found, broken_payloads
from agrpo.store.store import Store

ROWS_SHOWN = 100
"""Offending rows of one check that are kept; more say the same."""
_NO_BOUND = 1 << 30
"""More versions than any run publishes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A row for which something does not hold."""

    check: str
    says: str
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was looked at, and what was wrong."""

    run_id: str
    num_groups: int
    num_samples: int
    num_steps: int
    num_turns: int
    """Turns whose arrays were decoded and compared with their digests."""
    num_tokens: int
    """Tokens in those arrays, generated or not."""
    problems: list[Problem]

    @property
    def holds(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems


def verify(store: Store, run_id: str) -> Verification:
    """Check accounting, order, versions, staleness and every stored array of a run. Raises BadInput for no such run."""
    config = runs.get_run(store, run_id).config
    with store.read() as connection:
        problems = list(_broken_rows(connection, run_id, _max_staleness(config)))
        payload = broken_payloads(connection, run_id)
        problems += [Problem(*found) for found in islice(_rows(payload.broken), ROWS_SHOWN)]
        return Verification(
            run_id=run_id,
            num_groups=_count(connection, schema.groups, run_id),
            num_samples=_count(connection, schema.samples, run_id),
            num_steps=_count(connection, schema.steps, run_id),
            num_turns=payload.num_turns,
            num_tokens=payload.num_tokens,
            problems=problems,
        )


def _broken_rows(connection: Connection, run_id: str, max_staleness: int) -> Iterator[Problem]:
    for name, (says, query) in {**checks.GROUPS, **checks.STEPS, "staleness": checks.STALENESS}.items():
        values = {"run": run_id} | ({"max_staleness": max_staleness} if name == "staleness" else {})
        for row in connection.execute(text(query), values).fetchmany(ROWS_SHOWN):
            yield Problem(name, says, dict(row._mapping))


def _rows(broken: list[Found]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for found in broken:
        yield found.check, found.says, found.row


def _max_staleness(config: dict[str, Any]) -> int:
    """Of a run file or of a script's settings; both are stored with their defaults."""
    return int(config.get("trainer", config).get("max_staleness", _NO_BOUND))


def _count(connection: Connection, table: Any, run_id: str) -> int:
    query = select(func.count()).select_from(table).where(table.c.run_id == run_id)
    return int(connection.execute(query).scalar_one())
