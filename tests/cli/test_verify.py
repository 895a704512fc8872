"""`agrpo verify`: its words, its exit code, its JSON."""

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from agrpo.cli.verify import print_verification
from agrpo.store import Store
from tests.worlds.small_groups import generate, start_run, start_worker


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A run with two pending groups."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    attempt = start_run(store)
    generate(attempt, start_worker(attempt), 2)
    return store


def test_a_sound_run_is_one_line(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_verification(store.url, "small", as_json=False) == 0
    seen = "2 groups, 4 samples, 0 steps, 4 turns with 6 tokens"
    assert capsys.readouterr().out == f"small: every check holds ({seen})\n"


def test_a_broken_run_shows_the_offending_rows(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with store.write() as connection:
        connection.execute(text("UPDATE samples SET status = 'trained' WHERE id = 3"))
    assert print_verification(store.url, "small", as_json=False) == 1
    assert "sample_status: a sample is not exactly one of" in capsys.readouterr().out
    assert print_verification(store.url, "small", as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["holds"]
    assert {"sample_id": 3, "status": "trained", "step": None, "drop_reason": None} in [
        problem["row"] for problem in said["problems"]
    ]
