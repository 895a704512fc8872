"""Starts a replay in processes of its own: as many ranks and threads as the run's trainer had."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from agrpo.errors import AgrpoError, BadInput
from agrpo.launch import exits
from agrpo.runfile import RunFile
from agrpo.session import specs
from agrpo.session.placement import placement
from agrpo.session.stored import settings_of
from agrpo.store import Store, runs
from agrpo.trainer.replay_result import ReplayResult


def replay_run(
    store: Store, run_id: str, to_step: int, from_step: int = 0, output: Path | None = None, start: Path | None = None
) -> ReplayResult:
    """Make steps of a run again and compare them; a forked run's shared steps are made as the run forked from.

    Raises BadInput for steps that cannot be made, AgrpoError when the replay's process failed.
    """
    stored = runs.get_run(store, run_id)
    if stored.forked_from is not None and stored.forked_step is not None and from_step < stored.forked_step:
        if to_step <= stored.forked_step:
            return replay_run(store, stored.forked_from, to_step, from_step, output, start)
        with tempfile.TemporaryDirectory(prefix=".fork-", dir=_folder(stored)) as folder:
            shared = Path(folder) / "shared"
            first = replay_run(store, stored.forked_from, stored.forked_step, from_step, shared, start)
            then = _start(store, stored, to_step, stored.forked_step, output, shared)
        return first.followed_by(then)
    return _start(store, stored, to_step, from_step, output, start)


def _start(
    store: Store, stored: runs.Run, to_step: int, from_step: int, output: Path | None, start: Path | None
) -> ReplayResult:
    run = settings_of(stored)
    with tempfile.TemporaryDirectory(prefix="agrpo-replay-") as folder:
        result = Path(folder) / "result.json"
        where = ["--store", store.url, "--run", stored.run_id, "--result", str(result)]
        where += ["--to-step", str(to_step), "--from-step", str(from_step)]
        where += ["--output", str(output.absolute())] if output else []
        where += ["--start", str(start.absolute())] if start else []
        place = placement(run)
        command = specs.trainer_command(run, place, "agrpo.trainer.replay", *where)
        env = {**os.environ, **specs.trainer_env(place, _threads(stored, run))}
        ended = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if result.exists():
            return ReplayResult.from_json(json.loads(result.read_text()))
    if ended.returncode == exits.BAD_INPUT:
        raise BadInput(ended.stderr.strip().splitlines()[-1].removeprefix(exits.REFUSAL))
    raise AgrpoError(f"the replay {exits.describe(ended.returncode)}; its last words:\n{ended.stderr[-4000:]}")


def _threads(stored: runs.Run, run: RunFile) -> int | None:
    """As many as the run noted: the bits depend on it."""
    noted = (stored.environment or {}).get("threads")
    return int(noted) if noted is not None else run.trainer.threads


def _folder(stored: runs.Run) -> Path:
    folder = Path(stored.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
