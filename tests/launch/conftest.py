from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.launch.attach import attach
from agrpo.launch.launcher import Launcher
from agrpo.store import Attempt, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def attempt(store: Store, tmp_path: Path) -> Attempt:
    attempt = attach(store, "r1", {"seed": 1}, "hash", tmp_path).attempt
    assert attempt is not None
    return attempt


@pytest.fixture
def launcher(attempt: Attempt, tmp_path: Path) -> Iterator[Launcher]:
    with Launcher(attempt, tmp_path) as launcher:
        yield launcher
