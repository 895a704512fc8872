"""`agrpo fork RUN`: another run that begins where this one was after a step."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from agrpo import runfile
from agrpo.cli.stores import opened
from agrpo.errors import BadInput, StoreError
from agrpo.session.replays import replay_run
from agrpo.session.stored import settings_of
from agrpo.store import Store, checkpoints, command, forks, runs
from agrpo.store.checkpoints import CheckpointRow
from agrpo.trainer.checkpoint import MARKER, damage, make_folder, marker_digest, seal


def fork_run(store_url: str | None, run_id: str, step: int, name: str, overrides: Iterable[str]) -> str:
    """Make the new run, with the checkpoint of that step; one line on what was made. Nothing is started."""
    with opened(store_url) as store:
        parent = runs.get_run(store, run_id)
        settings_of(parent)  # which a run of a script has not
        if not 0 <= step <= parent.step:
            raise BadInput(f"--step {step}: run {run_id!r} has finished steps 1 to {parent.step}")
        if runs.find_run(store, name) is not None:
            raise BadInput(f"run {name!r} exists already: choose another --name")
        run = runfile.changed(parent.config, [f"name={name}", *overrides], f"fork of {run_id}")
        found = _checkpoint(store, parent, step, run.run_dir.absolute() / "checkpoints" / f"checkpoint-{step}")
        config, digest = runfile.stored_config(run), runfile.config_hash(run)
        forks.fork(store, run_id, step, name, config, digest, str(run.run_dir.absolute()), found)
        go_on = command(f"resume {name}", store.url)
    return f"{name} begins after step {step} of {run_id}; start it with: {go_on}"


def _checkpoint(store: Store, parent: runs.Run, step: int, folder: Path) -> tuple[str, str] | None:
    """A checkpoint of the step in the new run's own folder: the parent's files under a second name, or made again."""
    if step == 0:
        return None
    make_folder(folder.parent)
    shutil.rmtree(folder, ignore_errors=True)
    for row in checkpoints.all(store, parent.run_id):
        if row.step == step and damage(Path(row.path), row.digest) is None:
            return str(folder), _copied(row, folder)
    _make_again(store, parent.run_id, step, folder)
    return str(folder), marker_digest(folder)


def _copied(row: CheckpointRow, folder: Path) -> str:
    """The checkpoint's files under a second name, complete like any other; its digest."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(row.path, aside, copy_function=_link, ignore=shutil.ignore_patterns(MARKER))
    digest = seal(aside, folder)
    if digest != row.digest:
        raise StoreError(f"checkpoint {row.step} has changed while it was copied from {row.path}: fork again")
    return digest


def _make_again(store: Store, run_id: str, step: int, folder: Path) -> None:
    """Replay from the nearest checkpoint before the step. Raises BadInput when other weights come out."""
    sound = [row.step for row in checkpoints.all(store, run_id) if damage(Path(row.path), row.digest) is None]
    begin = max((there for there in sound if there < step), default=0)
    result = replay_run(store, run_id, step, begin, folder)
    if result.verdict != "equal":
        shutil.rmtree(folder, ignore_errors=True)
        there = ", ".join(map(str, sound)) or "none"
        raise BadInput(
            f"--step {step}: making it again from step {begin} gives other weights ({result.verdict}); "
            f"fork from a step that has a checkpoint: {there}"
        )


def _link(source: str, target: str) -> None:
    """A checkpoint's files never change, so two runs may hold the same ones; another disk needs a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
