"""One database: how it is opened, read and written. Writes are serialised, so a transaction sees no half of another."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL, Connection, Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from agrpo.errors import OldSchema, StoreError, StoreOutage
from agrpo.store import sqlite
from agrpo.store.json_text import dumps

DEFAULT_URL = "sqlite:///runs/agrpo.db"
"""Where runs are kept when nobody says otherwise."""
VERSION_TABLE = "agrpo_alembic_version"
REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""Schema revisions in order; the last one is what this code reads and writes."""

FROZEN_AFTER_S = 30
"""A PostgreSQL client that says nothing for so long inside a transaction is frozen, and must not hold its locks."""


_NO_ROOM = "has no room left: make some on its disk; a run goes on by itself, or is resumed"
_READ_ONLY = "cannot be written: make it writable, or name another place in store.url, then resume the run"
_DAMAGED = "is damaged: put a copy of it back, then resume the run"
_HELD = (
    "is held by another process for too long: a frozen one (state T in `ps`) holds it until it is continued or killed; "
    "`fuser` with the file's name says which process it is"
)
_KNOWN_FAILURES: tuple[tuple[str, type[StoreError] | type[StoreOutage], str], ...] = (
    ("database or disk is full", StoreOutage, _NO_ROOM),
    ("No space left on device", StoreOutage, _NO_ROOM),
    ("readonly database", StoreError, _READ_ONLY),
    ("read-only transaction", StoreError, _READ_ONLY),
    ("disk image is malformed", StoreError, _DAMAGED),
    ("file is not a database", StoreError, _DAMAGED),
    ("database is locked", StoreOutage, _HELD),
)
"""What databases say of a disk, which error it is, and what to do."""


class Store:
    """A SQL database that holds runs: a SQLite file or a PostgreSQL database."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self._reading = engine
        self._writing = engine
        if engine.dialect.name == "sqlite":
            self._writing = engine.execution_options(agrpo_begin="BEGIN IMMEDIATE")
        else:
            self._reading = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._schema_checked = False

    @classmethod
    def open(cls, url: str, create: bool = True) -> "Store":
        """Open `sqlite:///path` or `postgresql+psycopg://...`; `create=False` refuses a SQLite file that is not there.

        Raises StoreError for a URL that cannot hold runs, such as a SQLite file on a network file system.
        """
        parsed = _parse(url)
        backend = parsed.get_backend_name()
        if backend == "sqlite":
            engine = sqlite.open_engine(parsed, create, dumps)
        elif backend == "postgresql":
            own = parsed.normalized_query.get("options", ())  # of the URL, which connect_args would replace
            timeout = f"-c idle_in_transaction_session_timeout={FROZEN_AFTER_S * 1000}"
            engine = create_engine(
                parsed.set(drivername="postgresql+psycopg"),
                pool_pre_ping=True,
                json_serializer=dumps,
                connect_args={"options": " ".join((*own, timeout))},
            )
        else:
            raise StoreError(f"store URL names {backend!r}: only sqlite and postgresql can hold runs")
        return cls(url, engine)

    @staticmethod
    def check_place(url: str) -> None:
        """Raise StoreError when no store can be kept at `url`; a database server is not asked. Makes nothing."""
        if url.startswith("sqlite"):
            return sqlite.check_place(_parse(url))
        Store.open(url).close()

    def close(self) -> None:
        """Close every connection."""
        self._reading.dispose()
        self._writing.dispose()

    def migrate(self) -> None:
        """Bring the schema to the newest revision; several processes may call this at once."""
        from agrpo.store import migrate  # alembic takes a third of a second that readers need not spend

        migrate.upgrade(self)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database and changes nothing."""
        with _outages(self._reading), self._reading.connect() as connection:
            self._check_schema(connection)
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits unless an exception leaves it. A run's own processes use Attempt.write."""
        with self.write_unchecked() as connection:
            self._check_schema(connection)
            yield connection

    @contextmanager
    def write_unchecked(self) -> Iterator[Connection]:
        """Like `write`, for the migration itself: the schema may be absent or old."""
        with _outages(self._writing), self._writing.begin() as connection:
            yield connection

    def _check_schema(self, connection: Connection) -> None:
        if self._schema_checked:
            return
        found = revision(connection)
        if found not in REVISIONS and found is not None:
            raise StoreError(
                f"the database has schema {found!r} and this code knows up to {REVISIONS[-1]!r}: install a newer agrpo"
            )
        if found != REVISIONS[-1]:
            raise OldSchema(
                f"the database has schema {found!r}, expected {REVISIONS[-1]!r}: agrpo resume (or train) migrates it"
            )
        self._schema_checked = True


def command(words: str, url: str) -> str:
    """`agrpo WORDS` as a person has to type it, with the store at `url` where it is not the default one.

    AGRPO_DATABASE_URL is trusted for addresses with a password alone: a run sets it for its own processes.
    """
    shown = _parse(url).render_as_string()  # without the password
    if url == DEFAULT_URL or (shown != url and url == os.environ.get("AGRPO_DATABASE_URL")):
        return f"agrpo {words}"
    return f"agrpo {words} --store {shlex.quote(shown)}"


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:
        raise StoreError(
            f"store URL {url!r} is no database URL: write sqlite:///runs/agrpo.db or postgresql://..."
        ) from error


def revision(connection: Connection) -> str | None:
    """The schema revision of the database; None for an empty one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


@contextmanager
def _outages(engine: Engine) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        where = engine.url.render_as_string(hide_password=True)
        reason = " ".join(str(error.orig).split())
        for words, kind, advice in _KNOWN_FAILURES:
            if words in reason:
                raise kind(f"database {where} {advice} ({reason})") from error
        if not isinstance(error, OperationalError) and not error.connection_invalidated:
            raise
        raise StoreOutage(f"database {where} did not answer: {reason}") from error
