"""What a fork has on disk before anything of it is in the store."""

import json
import os
from pathlib import Path

import pytest

from agrpo import runfile
from agrpo.cli.fork import fork_run
from agrpo.errors import BadInput
from agrpo.store import Store, checkpoints, leases, runs, steps
from agrpo.trainer.checkpoint import MARKER, CheckpointShelf, damage
from tests.worlds.small_groups import DEAD


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A run after one step, with its checkpoint."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    given = {
        "name": "old",
        "model": {"path": "m"},
        "data": {"rows": "a:b"},
        "rewards": ["a:c"],
        "output": str(tmp_path),
    }
    run = runfile.parse(given, "test")
    runs.create_run(store, "old", runfile.stored_config(run), runfile.config_hash(run), str(run.run_dir))
    attempt = leases.acquire(store, "old", DEAD)
    steps.record(attempt, 1, [], 0)
    steps.finish(attempt, 1, "digest", {})
    shelf = CheckpointShelf(attempt, run.run_dir / "checkpoints")
    filled = shelf.begin(1)
    (filled / "model.safetensors").write_bytes(b"weights" * 1000)
    shelf.finish(1, filled)
    return store


def test_a_fork_has_a_complete_checkpoint_of_its_own_made_of_the_same_files(store: Store) -> None:
    fork_run(store.url, "old", 1, "new", [])
    named, own = checkpoints.cursor(store, "old"), checkpoints.cursor(store, "new")
    assert named is not None and own is not None and Path(own.path).parts[-3:] == ("new", "checkpoints", "checkpoint-1")
    assert damage(Path(own.path), own.digest) is None
    assert os.path.samefile(f"{own.path}/model.safetensors", f"{named.path}/model.safetensors")
    # Its marker was written when everything else was on the disk, as that of any checkpoint.
    assert not os.path.samefile(f"{own.path}/{MARKER}", f"{named.path}/{MARKER}")
    assert json.loads((Path(own.path) / MARKER).read_text()).keys() == {"model.safetensors", "rollout_state.json"}
    assert [path.name for path in Path(own.path).parent.iterdir()] == ["checkpoint-1"]


def test_what_cannot_be_forked(store: Store) -> None:
    with pytest.raises(BadInput, match=r"--step 2: run 'old' has finished steps 1 to 1"):
        fork_run(store.url, "old", 2, "new", [])
    with pytest.raises(BadInput, match="run 'old' exists already"):
        fork_run(store.url, "old", 1, "old", [])
