"""Checkpoints that are whole or not there: written aside, renamed, marked complete, then named in the store."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from agrpo.errors import Outage, StoreError
from agrpo.store import Attempt, checkpoints, command, runs, steps
from agrpo.store.checkpoints import CheckpointRow

MARKER = "complete.json"
"""Written last: size and digest of every other file."""
ROLLOUT_STATE = "rollout_state.json"
_CHUNK = 1 << 22
_SPARE_BYTES = 1 << 16
"""With less than this a disk is full, whatever the library says that failed to write to it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where to resume."""

    path: Path | None
    """None: start from the model as it is."""
    step: int
    skipped: tuple[str, ...]
    """One line for each folder that was not used although it looks newer."""


class CheckpointShelf:
    """The checkpoints of a run in one folder, `checkpoint-<step>` each."""

    def __init__(self, attempt: Attempt, root: Path, reached: Callable[[str], None] = lambda boundary: None) -> None:
        """`reached` is called between any two writes, so that a test can end the process there."""
        self._attempt = attempt
        self._root = root
        self._reached = reached

    def begin(self, step: int) -> Path:
        """An empty folder to fill aside, this attempt's own."""
        folder = self._aside(step)
        self._clear()
        make_folder(self._root)
        folder.mkdir()
        self._reached("begun")
        return folder

    def finish(self, step: int, filled: Path) -> Path:
        """Make a filled folder the checkpoint of a step and the run's cursor."""
        index = runs.trained_prompt_index(self._attempt.store, self._attempt.run_id, step)
        (filled / ROLLOUT_STATE).write_text(json.dumps({"trained_prompt_index": index}))
        self._reached("filled")
        manifest = _synced(filled)
        self._reached("synced")
        final = self._root / f"checkpoint-{step}"
        checkpoints.place(
            self._attempt, step, str(final), index, lambda: _place(filled, final, manifest, self._reached)
        )
        self._reached("committed")
        shutil.rmtree(self._aside(step), ignore_errors=True)
        return final

    def choose(self) -> Choice:
        """The newest complete checkpoint that the store names, up to its cursor; it becomes the cursor.

        Raises StoreError when the steps after it cannot be made again: their tokens were pruned, or a fork shares them.
        """
        cursor = checkpoints.cursor(self._attempt.store, self._attempt.run_id)
        known = checkpoints.all(self._attempt.store, self._attempt.run_id)
        named = [row for row in known if cursor and row.step <= cursor.step]
        skipped = [f"{path.name}: no store names it" for path in self._unnamed({Path(row.path).name for row in named})]
        for row in reversed(named):
            problem = damage(Path(row.path), row.digest)
            if problem is None:
                return self._chosen(Choice(Path(row.path), row.step, tuple(skipped)), cursor)
            skipped.append(f"{Path(row.path).name}: {problem}")
        return self._chosen(Choice(None, 0, tuple(skipped)), cursor)

    def _chosen(self, choice: Choice, cursor: CheckpointRow | None) -> Choice:
        self._refuse_shared(choice)
        if cursor is None or cursor.step == choice.step:
            return choice
        store, run_id = self._attempt.store, self._attempt.run_id
        pruned = steps.pruned(store, run_id, choice.step, steps.last_recorded(store, run_id))
        if pruned is not None:
            raise StoreError(
                f"checkpoint {cursor.step} cannot be used ({choice.skipped[-1]}), and the tokens of step {pruned} were "
                f"pruned (store.keep_payloads), so that it cannot be made again from checkpoint {choice.step}: put the "
                "checkpoint's files back, or fork the run at a step whose checkpoint is whole"
            )
        checkpoints.fall_back(self._attempt, choice.step)
        return choice

    def _refuse_shared(self, choice: Choice) -> None:
        """The steps that a fork shares were made with the other run's settings: never again with its own."""
        run = runs.get_run(self._attempt.store, self._attempt.run_id)
        if run.forked_step is not None and choice.step < run.forked_step:
            found = "; ".join(choice.skipped) or "no store names it"
            again = f"fork {run.forked_from} --step {run.forked_step} --name NEW"
            raise StoreError(
                f"checkpoint {run.forked_step}, with which run {run.run_id!r} begins, cannot be used ({found}): put "
                f"its files back, or fork again: {command(again, self._attempt.store.url)}"
            )

    def rotate(self, limit: int | None) -> None:
        """Delete the oldest beyond `limit`; the cursor's always stays."""
        if limit is None or limit < 1:
            return
        for row in checkpoints.all(self._attempt.store, self._attempt.run_id)[:-limit]:
            checkpoints.forget(self._attempt, row.step)
        self._clear()

    def _clear(self) -> None:
        """Delete what is of no use, also where an earlier deletion was cut short; never what a later attempt fills."""
        self._delete_aside()
        checkpoints.while_owned(self._attempt, self._set_aside)
        self._delete_aside()

    def _set_aside(self, cursor: int, named: set[str]) -> None:
        """Take away checkpoints behind the cursor that no store names: none of them will be written again."""
        for folder in self._root.glob("checkpoint-*"):
            step = _last_number(folder)
            if step is not None and step < cursor and folder.name not in named and _is_ours(folder):
                folder.rename(self._aside(step))

    def _delete_aside(self) -> None:
        for folder in self._root.glob("tmp-*-*"):
            token = _last_number(folder)
            if token is not None and token <= self._attempt.token:
                shutil.rmtree(folder, ignore_errors=True)

    def _aside(self, step: int) -> Path:
        return self._root / f"tmp-{step}-{self._attempt.token}"

    def _unnamed(self, named: set[str]) -> list[Path]:
        folders = [*self._root.glob("checkpoint-*"), *self._root.glob("tmp-*")]
        return sorted(path for path in folders if path.name not in named)


@contextmanager
def room_for(filling: Path, step: int) -> Iterator[None]:
    """Raise Outage when filling a folder aside fails for lack of room, in whichever words of which library."""
    try:
        yield
    except Exception as error:
        if not _is_full(filling, error):
            raise
        shutil.rmtree(filling, ignore_errors=True)
        raise Outage(
            f"the checkpoint of step {step} found no room on the disk of {filling.parent}: make some; until then the "
            "run stays at the checkpoint before"
        ) from error


def _is_full(folder: Path, error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return "No space left" in str(error) or shutil.disk_usage(nearest).free < _SPARE_BYTES


def seal(filled: Path, final: Path) -> str:
    """Make a filled folder the complete checkpoint `final`, whatever was there; returns the digest of its marker."""
    return _place(filled, final, _synced(filled), lambda boundary: None)


def marker_digest(folder: Path) -> str:
    """The digest of a complete checkpoint, as the store names it."""
    return xxhash.xxh3_128_hexdigest((folder / MARKER).read_bytes())


def damage(folder: Path, digest: str) -> str | None:
    """What is wrong with a checkpoint; None when every byte is there."""
    try:
        return _damage(folder, digest)
    except OSError as error:
        return f"it cannot be read: {error}"


def _damage(folder: Path, digest: str) -> str | None:
    if not (folder / MARKER).exists():
        return f"no {MARKER}: it was never completed"
    if marker_digest(folder) != digest:
        return f"{MARKER} is not the one the store names"
    for name, facts in json.loads((folder / MARKER).read_text()).items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["size"]:
            return f"{name} has {path.stat().st_size} bytes, expected {facts['size']}"
        if _digest(path) != facts["digest"]:
            return f"{name} has other content"
    return None


def _synced(filled: Path) -> dict[str, dict[str, object]]:
    """Size and digest of every file, all of them on the disk."""
    manifest: dict[str, dict[str, object]] = {
        str(path.relative_to(filled)): {"size": path.stat().st_size, "digest": _sync_and_digest(path)}
        for path in _files(filled)
    }
    _sync_folders(filled)
    return manifest


def _place(filled: Path, final: Path, manifest: dict[str, dict[str, object]], reached: Callable[[str], None]) -> str:
    shutil.rmtree(final, ignore_errors=True)  # nobody names it, or it was damaged
    reached("cleared")
    filled.rename(final)
    _sync_folder(final.parent)
    reached("renamed")
    digest = _mark(final, manifest, reached)
    reached("marked")
    return digest


def _mark(final: Path, manifest: dict[str, dict[str, object]], reached: Callable[[str], None]) -> str:
    text = json.dumps(manifest, indent=1, sort_keys=True)
    unfinished = final / f".{MARKER}"
    unfinished.write_text(text)
    _sync_and_digest(unfinished)
    reached("marker written")
    unfinished.rename(final / MARKER)
    _sync_folder(final)
    return xxhash.xxh3_128_hexdigest(text.encode())


def _is_ours(folder: Path) -> bool:
    """Not one that another program left in the same place."""
    return (folder / MARKER).exists() or (folder / ROLLOUT_STATE).exists()


def _last_number(folder: Path) -> int | None:
    last = folder.name.rpartition("-")[2]
    return int(last) if last.isdecimal() else None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync_and_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return _digest(path)


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _sync_folders(folder: Path) -> None:
    for path in [folder, *(inner for inner in folder.rglob("*") if inner.is_dir())]:
        _sync_folder(path)


def make_folder(folder: Path) -> None:
    """A folder that a power cut does not take away, nor those above it."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
