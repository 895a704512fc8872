"""Databases for tests: SQLite files and one PostgreSQL server, empty or with the newest schema."""

import shutil
from pathlib import Path

from sqlalchemy import text

from agrpo.store import Store
from agrpo.store.schema import metadata
from tests.worlds.postgres import Postgres

BACKENDS = ("sqlite", "postgresql")


class Databases:
    """Gives out databases, empty or migrated."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._postgres: Postgres | None = None
        self._migrated: dict[str, str] = {}

    def empty(self, backend: str) -> str:
        """The URL of a database without tables."""
        if backend == "sqlite":
            return f"sqlite:///{self._file()}"
        if self._postgres is None:
            self._postgres = Postgres()
        return self._postgres.create()

    def migrated(self, backend: str) -> str:
        """The URL of a database with the newest schema and no rows, which nobody else uses meanwhile."""
        if backend not in self._migrated:
            self._migrated[backend] = self.empty(backend)
            store = Store.open(self._migrated[backend])
            store.migrate()
            store.close()
        if backend == "postgresql":
            truncate(self._migrated[backend])
            return self._migrated[backend]
        path = self._file()
        shutil.copyfile(self._migrated[backend].removeprefix("sqlite:///"), path)
        return f"sqlite:///{path}"

    def stop(self) -> None:
        if self._postgres is not None:
            self._postgres.stop()

    def _file(self) -> Path:
        self._count += 1
        return self._folder / f"{self._count}.db"


def truncate(url: str) -> None:
    """Delete every row; a copy of the database would write eight megabytes a test."""
    store = Store.open(url)
    with store.write() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY"))
    store.close()
