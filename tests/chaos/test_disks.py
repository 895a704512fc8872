"""A full disk and a read-only one: one clear line, nothing broken, and on it goes when there is room again."""

import errno
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agrpo.errors import Outage, StoreError, StoreOutage
from agrpo.launch import exits
from agrpo.store import Attempt, Store, checkpoints, events, groups
from agrpo.store.verify import verify
from agrpo.trainer.checkpoint import CheckpointShelf, room_for
from tests.worlds.small_disk import SmallDisk
from tests.worlds.small_groups import generate, group, scored, start_run, start_worker, turn


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    small = SmallDisk(tmp_path / "disk", kilobytes=1024)
    yield small
    small.unmount()


@pytest.fixture
def attempt(disk: SmallDisk) -> Iterator[Attempt]:
    store = Store.open(f"sqlite:///{disk.folder}/agrpo.db")
    store.migrate()
    yield start_run(store)
    store.close()


def is_sound(folder: Path) -> bool:
    database = sqlite3.connect(folder / "agrpo.db")
    try:
        return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        database.close()


def generate_until(attempt: Attempt, error: type[Exception], words: str) -> int:
    """Commit groups until it fails; how many were committed."""
    worker = start_worker(attempt)
    with pytest.raises(error, match=words):
        for number in count():
            (claim,) = groups.claim(attempt, worker, 1)
            long = scored([turn([1, 2, 3], [number, *range(4000)])])
            groups.commit(attempt, group(claim, long, scored([turn([1, 2, 3], [6])], 0.0, -1.0)))
    return number


def test_a_full_disk_stops_the_store_and_room_lets_it_go_on(disk: SmallDisk, attempt: Attempt) -> None:
    words = r"database sqlite:///.*agrpo\.db has no room left: make some on its disk; .* \(database or disk is full\)$"
    done = generate_until(attempt, StoreOutage, words)
    assert done > 0 and len(groups.groups(attempt.store, "small", "ready")) == done
    assert is_sound(disk.folder)
    disk.set_size(4096)
    worker = start_worker(attempt)
    assert len(generate(attempt, worker, 3)) == 3
    assert is_sound(disk.folder) and verify(attempt.store, "small").problems == []


def test_a_database_that_may_not_grow_says_so(disk: SmallDisk, attempt: Attempt) -> None:
    """SQLite's own limit, and PostgreSQL's words for a quota, come out as the same line."""
    with attempt.store.write() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 10}")
    done = generate_until(attempt, StoreOutage, "has no room left")
    with attempt.store.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert len(groups.groups(attempt.store, "small", "ready")) == done
    assert generate(attempt, start_worker(attempt), 1)


def test_a_read_only_disk_is_named_and_what_was_there_stays(disk: SmallDisk, attempt: Attempt) -> None:
    generate(attempt, start_worker(attempt), 2)
    attempt.store.close()
    disk.set_writable(False)
    with pytest.raises((StoreError, StoreOutage), match=r"database sqlite:///.*agrpo\.db .*(readonly|unable to open)"):
        events.add(attempt, "word", "line")
    disk.set_writable(True)
    events.add(attempt, "word", "line")
    assert len(groups.groups(attempt.store, "small", "ready")) == 2 and is_sound(disk.folder)


def test_a_file_that_became_read_only_is_named(attempt: Attempt, disk: SmallDisk) -> None:
    with attempt.store.write() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match=r"cannot be written: make it writable, .* \(attempt to write a readonly"):
        events.add(attempt, "word", "line")


def test_a_damaged_database_is_named(disk: SmallDisk, attempt: Attempt) -> None:
    attempt.store.close()
    (disk.folder / "agrpo.db").write_bytes(b"no database " * 1000)
    with pytest.raises(StoreError, match=r"is damaged: put a copy of it back, .* \(file is not a database\)"):
        events.add(attempt, "word", "line")


def test_a_limit_on_the_size_of_files_breaks_nothing(tmp_path: Path) -> None:
    """EFBIG, where a write is cut in the middle: RLIMIT_FSIZE in a process of its own."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    store.close()
    limit = (tmp_path / "agrpo.db").stat().st_size + 8192
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.power_work", str(tmp_path), "groups"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "StoreOutage: database sqlite:///" in done.stderr, done.stderr
    assert is_sound(tmp_path)
    again = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    assert verify(again, "small").problems == []
    again.close()


def fill_checkpoint(shelf: CheckpointShelf, root: Path, step: int, write: Callable[[Path], object]) -> None:
    """What the trainer does: everything between begin and finish, under one roof."""
    folder = shelf.begin(step)
    with room_for(folder, step):
        write(folder)
        shelf.finish(step, folder)


def test_a_checkpoint_without_room_is_an_outage_and_leaves_the_one_before(disk: SmallDisk, attempt: Attempt) -> None:
    root = disk.folder / "checkpoints"
    shelf = CheckpointShelf(attempt, root)
    fill_checkpoint(shelf, root, 1, lambda folder: (folder / "model").write_bytes(b"1" * 1000))
    with pytest.raises(Outage, match=r"the checkpoint of step 2 found no room on the disk of .*checkpoints: make some"):
        fill_checkpoint(shelf, root, 2, lambda folder: (folder / "model").write_bytes(b"2" * 2_000_000))
    assert sorted(path.name for path in root.iterdir()) == ["checkpoint-1"]  # the half one gives its room back
    assert shelf.choose().step == 1 and shelf.choose().skipped == ()
    disk.set_size(8192)
    fill_checkpoint(shelf, root, 2, lambda folder: (folder / "model").write_bytes(b"2" * 2_000_000))
    cursor = checkpoints.cursor(attempt.store, attempt.run_id)
    assert cursor is not None and cursor.step == shelf.choose().step == 2


def test_libraries_that_have_words_of_their_own_for_it_are_understood(disk: SmallDisk) -> None:
    many = {"weight": torch.zeros(1_000_000)}
    folder = disk.folder / "tmp-1-1"
    for save in (lambda path: torch.save(many, path), lambda path: save_file(many, path)):
        folder.mkdir()
        with pytest.raises(Outage, match="the checkpoint of step 1 found no room"), room_for(folder, 1):
            save(folder / "model")
        assert not folder.exists()
    with pytest.raises(KeyError), room_for(folder, 1):
        raise KeyError("a bug")


def test_a_child_that_finds_no_room_says_it_is_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "trace.json")

    with pytest.raises(SystemExit) as left:
        exits.run(write)
    assert left.value.code == exits.OUTAGE
    assert capsys.readouterr().err == "outage: [Errno 28] No space left on device: 'trace.json'\n"


def test_a_child_whose_store_cannot_be_used_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def write() -> None:
        raise StoreError("database cannot be written")

    with pytest.raises(SystemExit) as left:
        exits.run(write)
    assert left.value.code == exits.BAD_INPUT
    assert capsys.readouterr().err == "cannot go on: database cannot be written\n"
