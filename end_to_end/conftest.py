"""What every test here shares."""

import signal
from collections.abc import Iterator

import pytest

from end_to_end.prefect_world import PrefectWorld

# A background shell ignores Ctrl-C, which whatever we start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectWorld]:
    """One Prefect server for all tests; those of a file are its chapters."""
    with PrefectWorld(tmp_path_factory.mktemp("world")) as world:
        yield world
