"""A power cut at any moment: what was acknowledged is there, the database is sound, and a checkpoint is whole.

tests/worlds/power.py says what a cut may leave. The last tests show that a sync left out would be noticed.
"""

import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from agrpo.store import drafts, groups, runs
from agrpo.store.verify import verify
from agrpo.trainer.checkpoint import CheckpointShelf
from tests.chaos.miniature import migrate
from tests.chaos.power_work import RUN, contents, open_again, take_over
from tests.worlds.power import Recording

NUM_CUTS = 16


def record(memory: Path, what: str, *arguments: str, drop: str | None = None) -> Recording:
    """The work, watched, on a migrated store."""
    disk = memory / "disk"
    disk.mkdir()
    migrate(disk)
    return Recording(disk, "tests.chaos.power_work", what, *arguments, drop=drop)


def survivors(memory: Path, recording: Recording) -> Iterator[tuple[Path, list[str]]]:
    """Folders as found after power cuts, each with what had been acknowledged by then."""
    random = Random(7)
    images = ((cut, share) for cut in recording.cuts(random, NUM_CUTS) for share in (0.0, 1.0, random.random()))
    yield from found_after(memory, recording, images, random)


def without_luck(memory: Path, recording: Recording) -> Iterator[tuple[Path, list[str]]]:
    """Those after each acknowledgement that have nothing but what was synced."""
    yield from found_after(memory, recording, ((cut, 0.0) for cut in recording.cuts_after()), Random(7))


def found_after(
    memory: Path, recording: Recording, images: Iterable[tuple[int, float]], random: Random
) -> Iterator[tuple[Path, list[str]]]:
    found = memory / "disk"  # the store names checkpoints by their whole path
    for cut, share in images:
        shutil.rmtree(found)
        recording.image(cut, share, random).write_to(found)
        yield found, recording.acknowledged(cut)


def check_groups(folder: Path, acknowledged: list[str]) -> None:
    """Raises when a group or a turn is missing, or the database is broken."""
    database = sqlite3.connect(folder / "agrpo.db")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    store = open_again(folder)
    ready = {row.id for row in groups.groups(store, RUN, "ready")} if runs.find_run(store, RUN) else set()
    for line in acknowledged:
        what, _, number = line.rpartition(" ")
        kept = int(number) in ready or (what == "turn of" and drafts.of_group(store, int(number)) != [])
        assert kept, f"lost: {line}"
    assert not runs.find_run(store, RUN) or verify(store, RUN).problems == []
    store.close()


def check_checkpoints(folder: Path, acknowledged: list[str]) -> None:
    """Raises when the next attempt would not begin with the newest checkpoint that was acknowledged, or a later one."""
    store = open_again(folder)
    last = max((int(line.split()[1]) for line in acknowledged), default=0)
    if runs.find_run(store, RUN) is not None:
        shelf = CheckpointShelf(take_over(store), folder / "run" / "checkpoints")
        choice = shelf.choose()
        assert choice.step >= last, f"step {choice.step} after {acknowledged}: {choice.skipped}"
        names = {path.name for path in (folder / "run" / "checkpoints").glob("*")} if choice.path else set()
        said = {line.split(":")[0] for line in choice.skipped}
        assert {name for name in names - {f"checkpoint-{choice.step}"} if newer(name, choice.step)} <= said
        for name, content in contents(choice.step).items() if choice.path else ():
            path = folder / "run" / "checkpoints" / f"checkpoint-{choice.step}" / name
            assert path.read_bytes() == content
    else:
        assert last == 0
    store.close()


def newer(name: str, step: int) -> bool:
    return int(name.split("-")[1]) > step


def test_every_group_and_turn_that_was_committed_survives(memory: Path) -> None:
    recording = record(memory, "groups")
    assert len(recording.acknowledged(len(recording.operations))) == 24
    for folder, acknowledged in survivors(memory, recording):
        check_groups(folder, acknowledged)


def test_a_checkpoint_that_was_finished_survives_and_a_half_one_is_passed_over(memory: Path) -> None:
    recording = record(memory, "checkpoints")
    assert len(recording.acknowledged(len(recording.operations))) == 3
    for folder, acknowledged in survivors(memory, recording):
        check_checkpoints(folder, acknowledged)


@pytest.mark.parametrize(("synchronous", "drop"), [("NORMAL", None), ("OFF", None), ("FULL", "-wal")])
def test_a_lower_synchronous_or_a_sync_left_out_would_be_noticed(
    memory: Path, synchronous: str, drop: str | None
) -> None:
    recording = record(memory, "groups", synchronous, drop=drop)
    with pytest.raises((AssertionError, sqlite3.DatabaseError)):
        for folder, acknowledged in without_luck(memory, recording):
            check_groups(folder, acknowledged)


@pytest.mark.parametrize(
    "drop", ["model.safetensors", "nested", "/rng_state.pth", ".complete.json", "checkpoint-2", "/checkpoints", "/run"]
)
def test_a_sync_left_out_of_a_checkpoint_would_be_noticed(memory: Path, drop: str) -> None:
    recording = record(memory, "checkpoints", drop=drop)
    with pytest.raises(AssertionError):
        for folder, acknowledged in without_luck(memory, recording):
            check_checkpoints(folder, acknowledged)
