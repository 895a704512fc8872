"""Every test that asks for `store` runs on SQLite and on PostgreSQL, each time with a database without rows."""

from collections.abc import Iterator

import pytest

from agrpo.store import Attempt, Store
from tests.worlds.databases import BACKENDS, Databases
from tests.worlds.small_groups import start_run, start_worker


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    found = Databases(tmp_path_factory.mktemp("databases"))
    yield found
    found.stop()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(databases: Databases, backend: str) -> str:
    return databases.migrated(backend)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield opened
    opened.close()


@pytest.fixture
def attempt(store: Store) -> Attempt:
    """The first attempt at a run, of a launcher that is dead by now."""
    return start_run(store)


@pytest.fixture
def worker(attempt: Attempt) -> int:
    return start_worker(attempt)
