"""A checkpoint is whole or not there, wherever its writer dies."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from agrpo.errors import LeaseLost, StatusConflict, StoreError
from agrpo.store import Store, checkpoints, forks, groups, leases, pruning, steps
from agrpo.trainer.checkpoint import MARKER, ROLLOUT_STATE, CheckpointShelf, damage
from tests.worlds import small_groups

BOUNDARIES = ("begun", "filled", "synced", "cleared", "renamed", "marker written", "marked", "committed")


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ours catches it."""


@pytest.fixture
def attempt(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    yield small_groups.start_run(store)
    store.close()


def write(shelf, step, weights=b"weights" * 1000):
    """A small checkpoint folder, as the trainer fills it."""
    folder = shelf.begin(step)
    inner = folder / f"checkpoint-{step}"
    inner.mkdir()
    (inner / "model.safetensors").write_bytes(weights)
    (inner / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return shelf.finish(step, inner)


def killed_at(boundary):
    def reached(place):
        if place == boundary:
            raise Killed

    return reached


def test_a_checkpoint_holds_the_trained_prompt_index_and_becomes_the_cursor(attempt, tmp_path):
    worker = small_groups.start_worker(attempt)
    small_groups.generate(attempt, worker, 2)
    steps.record(attempt, 1, [steps.StepRow(0, 0, 0, 1), steps.StepRow(0, 0, 1, 2)], 0)
    path = write(CheckpointShelf(attempt, tmp_path / "shelf"), 1)
    assert path == tmp_path / "shelf" / "checkpoint-1"
    assert json.loads((path / ROLLOUT_STATE).read_text()) == {"trained_prompt_index": 1}
    cursor = checkpoints.cursor(attempt.store, attempt.run_id)
    assert (cursor.step, cursor.trained_prompt_index) == (1, 1)
    assert damage(path, cursor.digest) is None
    assert not (tmp_path / "shelf" / "tmp-1-1").exists()


def test_the_store_names_the_prompt_index_that_the_folder_holds(attempt, tmp_path):
    """A worker gives up a prompt while the files are on their way to the disk."""
    (claim,) = groups.claim(attempt, small_groups.start_worker(attempt), 1)

    def reached(place):
        if place == "synced":
            groups.skip(attempt, claim.group_id, "too_long")

    path = write(CheckpointShelf(attempt, tmp_path, reached), 1)
    cursor = checkpoints.cursor(attempt.store, attempt.run_id)
    assert json.loads((path / ROLLOUT_STATE).read_text()) == {"trained_prompt_index": cursor.trained_prompt_index}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_killed_at_any_boundary_the_older_or_the_new_one_is_chosen(attempt, tmp_path, boundary):
    write(CheckpointShelf(attempt, tmp_path), 10)
    with pytest.raises(Killed):
        write(CheckpointShelf(attempt, tmp_path, reached=killed_at(boundary)), 11)
    shelf = CheckpointShelf(attempt, tmp_path)
    choice = shelf.choose()
    assert choice.step == (11 if boundary == "committed" else 10)
    assert choice.path == tmp_path / f"checkpoint-{choice.step}"
    if boundary == "committed":
        assert choice.skipped == ("tmp-11-1: no store names it",)
    else:
        assert "11" in choice.skipped[0]
    write(shelf, 11)  # and the next attempt writes it again
    assert shelf.choose().step == 11


def test_a_process_that_dies_between_rename_and_commit(attempt, tmp_path):
    write(CheckpointShelf(attempt, tmp_path / "shelf"), 10)
    script = f"""
import os
from pathlib import Path
from agrpo.store import Attempt, Store
from agrpo.trainer.checkpoint import CheckpointShelf
attempt = Attempt(Store.open({attempt.store.url!r}), {attempt.run_id!r}, {attempt.token})
def reached(place):
    if place == "marked":
        os._exit(9)
shelf = CheckpointShelf(attempt, Path({str(tmp_path / "shelf")!r}), reached)
folder = shelf.begin(11)
(folder / "model.safetensors").write_bytes(b"x")
shelf.finish(11, folder)
"""
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert done.returncode == 9
    choice = CheckpointShelf(attempt, tmp_path / "shelf").choose()
    assert (choice.step, choice.skipped) == (10, ("checkpoint-11: no store names it",))


def test_half_empty_and_truncated_checkpoints_are_skipped_and_said(attempt, tmp_path):
    shelf = CheckpointShelf(attempt, tmp_path)
    for step in (10, 11, 12, 13, 14):
        write(shelf, step)
    (tmp_path / "checkpoint-11" / "trainer_state.json").unlink()
    for path in (tmp_path / "checkpoint-12").iterdir():
        path.unlink()
    os.truncate(tmp_path / "checkpoint-13" / "model.safetensors", 100)
    damaged = tmp_path / "checkpoint-14" / "model.safetensors"
    damaged.write_bytes(b"v" + damaged.read_bytes()[1:])
    choice = shelf.choose()
    assert choice.step == 10
    assert choice.skipped == (
        "checkpoint-14: model.safetensors has other content",
        "checkpoint-13: model.safetensors has 100 bytes, expected 7000",
        f"checkpoint-12: no {MARKER}: it was never completed",
        "checkpoint-11: trainer_state.json is missing",
    )


def test_after_a_fall_back_the_older_one_is_the_cursor_and_rotation_goes_by_it(attempt, tmp_path):
    shelf = CheckpointShelf(attempt, tmp_path)
    for step in (10, 20):
        write(shelf, step)
    (tmp_path / "checkpoint-20" / "model.safetensors").unlink()
    assert shelf.choose().step == checkpoints.cursor(attempt.store, attempt.run_id).step == 10
    write(shelf, 15)  # in the middle of the replay to 20
    shelf.rotate(1)
    assert [row.step for row in checkpoints.all(attempt.store, attempt.run_id)] == [15]
    (tmp_path / "checkpoint-15" / MARKER).unlink()
    assert shelf.choose().step == 0
    assert checkpoints.cursor(attempt.store, attempt.run_id) is None
    write(shelf, 5)
    assert shelf.choose().step == 5


def test_a_fall_back_behind_pruned_steps_says_what_is_missing(attempt, tmp_path):
    shelf, worker = CheckpointShelf(attempt, tmp_path), small_groups.start_worker(attempt)
    small_groups.generate(attempt, worker, 2)
    for step in (1, 2):
        rows = [steps.StepRow(0, 0, position, 2 * step - 1 + position) for position in range(2)]
        steps.record(attempt, step, rows, 0)
        write(shelf, step)
    pruning.prune(attempt, "none")
    (tmp_path / "checkpoint-2" / MARKER).unlink()
    with pytest.raises(
        StoreError, match=r"checkpoint 2 cannot be used .* tokens of step 2 were pruned .* checkpoint 1"
    ):
        shelf.choose()
    assert checkpoints.cursor(attempt.store, attempt.run_id).step == 2


def test_what_cannot_be_read_is_skipped_like_any_other_damage(attempt, tmp_path):
    shelf = CheckpointShelf(attempt, tmp_path)
    write(shelf, 10)
    write(shelf, 11, b"")
    write(shelf, 12)
    (tmp_path / "checkpoint-11" / "model.safetensors").unlink()
    # It has no size, and its first byte cannot be read (EIO).
    (tmp_path / "checkpoint-11" / "model.safetensors").symlink_to("/proc/self/mem")
    (tmp_path / "checkpoint-12" / MARKER).write_bytes(b"\xff\xfe no text")
    choice = shelf.choose()
    assert choice.step == 10
    assert choice.skipped == (
        f"checkpoint-12: {MARKER} is not the one the store names",
        "checkpoint-11: it cannot be read: [Errno 5] Input/output error",
    )


def test_a_fork_whose_first_checkpoint_is_damaged_makes_no_shared_step_again(attempt, tmp_path):
    """The other run made them, with its own settings."""
    steps.record(attempt, 1, [], 0)
    steps.finish(attempt, 1, "digest", {})
    path = write(CheckpointShelf(attempt, tmp_path / "shelf"), 1)
    named = (str(path), checkpoints.cursor(attempt.store, attempt.run_id).digest)
    forks.fork(attempt.store, attempt.run_id, 1, "fork", {}, "hash", str(tmp_path), named)
    shelf = CheckpointShelf(leases.acquire(attempt.store, "fork", small_groups.DEAD), path.parent)
    assert shelf.choose().step == 1
    (path / MARKER).unlink()
    with pytest.raises(StoreError, match=r"checkpoint 1, .* 'fork' begins, .*agrpo fork small --step 1 --name NEW"):
        shelf.choose()
    assert checkpoints.cursor(attempt.store, "fork").step == 1


def test_nothing_to_resume_from(attempt, tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    choice = CheckpointShelf(attempt, tmp_path).choose()
    assert (choice.path, choice.step, choice.skipped) == (None, 0, ("checkpoint-3: no store names it",))


def test_rotation_keeps_the_newest_and_always_the_cursor(attempt, tmp_path):
    shelf = CheckpointShelf(attempt, tmp_path)
    for step in (1, 2, 3):
        write(shelf, step)
    shelf.rotate(None)
    assert [row.step for row in checkpoints.all(attempt.store, attempt.run_id)] == [1, 2, 3]
    shelf.rotate(1)
    assert [row.step for row in checkpoints.all(attempt.store, attempt.run_id)] == [3]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3"]
    with pytest.raises(StatusConflict):
        checkpoints.forget(attempt, 3)


def test_a_rotation_that_was_cut_short_is_finished(attempt, tmp_path):
    shelf = CheckpointShelf(attempt, tmp_path)
    for step in (1, 2, 3):
        write(shelf, step)
    checkpoints.forget(attempt, 1)  # killed before the folder was deleted
    (tmp_path / "checkpoint-0").mkdir()  # of another program
    (tmp_path / "checkpoint-4").mkdir()
    shutil.copytree(tmp_path / "checkpoint-3", tmp_path / "checkpoint-5")  # killed between renaming and naming
    shelf.begin(6)
    left = ["checkpoint-0", "checkpoint-2", "checkpoint-3", "checkpoint-4", "checkpoint-5", "tmp-6-1"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == left


def test_a_folder_that_a_successor_fills_is_left_alone(attempt, tmp_path):
    old = CheckpointShelf(attempt, tmp_path)
    half = old.begin(7)
    successor = leases.acquire(attempt.store, attempt.run_id, small_groups.DEAD)
    filled = CheckpointShelf(successor, tmp_path).begin(7)
    assert not half.exists() and filled.name == "tmp-7-2"
    with pytest.raises(LeaseLost):
        old.begin(8)
    assert filled.exists()


def test_a_writer_that_lost_the_run_meanwhile_leaves_its_successors_checkpoint_alone(attempt, tmp_path):
    successor = []

    def taken_over(place):
        if place == "synced":
            successor.append(leases.acquire(attempt.store, attempt.run_id, small_groups.DEAD))
            write(CheckpointShelf(successor[0], tmp_path), 7, b"new" * 1000)

    with pytest.raises(LeaseLost):
        write(CheckpointShelf(attempt, tmp_path, taken_over), 7, b"old" * 1000)
    choice = CheckpointShelf(successor[0], tmp_path).choose()
    assert choice.step == 7 and (choice.path / "model.safetensors").read_bytes() == b"new" * 1000
