"""Fixtures of the whole session. Nothing heavy is imported before a test asks for it."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.worlds.vllm_server import VllmServer

# A busy machine draws slowly; that is no fault of the code under test.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", PATIENT)
# A commit is judged by examples that the commit before it had, too; people's own runs look for new ones.
settings.register_profile("judging", PATIENT, derandomize=True)
settings.load_profile("judging" if "CI" in os.environ else "patient")

# A background shell ignores Ctrl-C, which whatever we start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


ALONE = (
    "chaos",
    "environments",
    "flows",
    "inference",
    "launch",
    "rollout",
    "session",
    "tools",
    "weights",
    "test_main.py",
)
"""Tests with processes of their own or short time limits: they want the machine for themselves."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs the marked ones one after another, and the others on two cores at once."""
    for item in items:
        if "vllm_server" in item.fixturenames or any(part in ALONE for part in item.path.parts):
            item.add_marker("alone")


@pytest.fixture
def ledgers_hold(tmp_path: "Path") -> Iterator[None]:
    """Tests that train use it: the check of `agrpo verify` on every store that they leave behind."""
    from tests.worlds.verified import check_ledgers

    yield
    check_ledgers(tmp_path)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["VllmServer"]:
    """One real vLLM server with the tiny model for all tests that ask for it; a test that changes its weights
    publishes the checkpoint again when it is done."""
    from tests.worlds.tiny_model import make_tiny_model
    from tests.worlds.vllm_server import serving

    folder = tmp_path_factory.mktemp("vllm")
    with serving(make_tiny_model(folder / "model"), folder) as server:
        yield server


@pytest.fixture
def trained_vllm_server(vllm_server: "VllmServer") -> Iterator["VllmServer"]:
    """The shared server for a test that trains: afterwards it serves its checkpoint again, and the ledger holds."""
    from tests.worlds.verified import check_ledgers
    from tests.worlds.vllm_server import publish_checkpoint

    yield vllm_server
    publish_checkpoint(vllm_server)
    check_ledgers(vllm_server.weights_dir.parent)
