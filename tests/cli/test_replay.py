"""Where `agrpo replay` may leave its checkpoint."""

import re
from pathlib import Path

import pytest

from agrpo.cli.replay import print_replay
from agrpo.errors import BadInput
from agrpo.store import Store, runs


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a run in it."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    runs.create_run(store, "small", {}, "hash", str(tmp_path / "small"))
    return store.url


def test_what_is_in_a_folder_already_survives(url: str, tmp_path: Path) -> None:
    kept = tmp_path / "mine" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("years")
    with pytest.raises(BadInput, match=re.escape(f"--output: {kept.parent} is not empty; name a new folder")):
        print_replay(url, "small", 1, 0, check=False, output=kept.parent, as_json=False)
    with pytest.raises(BadInput, match=re.escape(f"--output: {kept} cannot be made (File exists)")):
        print_replay(url, "small", 1, 0, check=False, output=kept, as_json=False)
    assert kept.read_text() == "years"
