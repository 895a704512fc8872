"""A scripted server whose completions differ, and a run with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollout.run_world import RunWorld, Varied
from tests.worlds.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(Varied()) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, server: ScriptedServer) -> RunWorld:
    return RunWorld(tmp_path, server)
