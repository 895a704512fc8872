"""The right to write: a run and the fencing token under which this process belongs to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, select

from agrpo.errors import LeaseLost, Outage
from agrpo.store.schema import processes, runs
from agrpo.store.store import Store


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a run; every write of its processes goes through it."""

    store: Store
    run_id: str
    token: int

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction that begins only while this attempt owns the run.

        Raises LeaseLost when another attempt has taken over. The row lock makes a takeover wait for this transaction
        and orders the writers of a run, as SQLite's single writer does.
        """
        with self.store.write() as connection:
            found = connection.execute(
                select(runs.c.token).where(runs.c.run_id == self.run_id).with_for_update()
            ).scalar()
            if found != self.token:
                raise LeaseLost(
                    f"run {self.run_id!r} belongs to attempt {found}, this process to attempt {self.token}: it stops"
                )
            yield connection

    def check(self) -> None:
        """Raise LeaseLost when another attempt has taken over; changes nothing."""
        with self.write():
            pass


@dataclass(frozen=True, slots=True)
class Membership(Attempt):
    """The right of one registered process of an attempt: it ends with the process's row."""

    process_id: int

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Like an attempt's, but only while the process counts as running.

        Raises Outage when it was given up as dead (its claims are others' then): started again, it may go on.
        """
        with Attempt.write(self) as connection:
            mine = processes.c.id == self.process_id
            state = connection.execute(select(processes.c.state).where(mine)).scalar()
            if state != "running":
                raise Outage(f"process {self.process_id} of run {self.run_id!r} was given up as dead: it begins again")
            yield connection
