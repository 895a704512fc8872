"""`agrpo replay RUN`: are the weights of a step those that its ledger makes?"""

import dataclasses
import json
from pathlib import Path

from agrpo.cli.stores import opened
from agrpo.errors import BadInput
from agrpo.session.replays import replay_run
from agrpo.store import runs
from agrpo.trainer.replay_result import EXIT_CODES, ReplayResult


def print_replay(
    store_url: str | None, run_id: str, to_step: int, from_step: int, check: bool, output: Path | None, as_json: bool
) -> int:
    """Make the steps again, say how they compare, keep a checkpoint unless only a check is wanted; the exit code."""
    with opened(store_url) as store:
        stored = runs.get_run(store, run_id)
        if check and output is not None:
            raise BadInput("--check keeps nothing: leave out --output, or --check")
        if output is not None:
            _refuse_unusable(output)
        folder = None if check else output or Path(stored.run_dir) / "replays" / f"step-{to_step}"
        result = replay_run(store, run_id, to_step, from_step, folder)
    if as_json:
        said = {**dataclasses.asdict(result), "verdict": result.verdict, "output": folder and str(folder)}
        print(json.dumps(said))
    else:
        print(_words(result))
        if folder is not None:
            print(f"checkpoint: {folder}")
    return EXIT_CODES[result.verdict]


def _refuse_unusable(output: Path) -> None:
    """Before steps are made for it: the checkpoint takes the folder's place, and all that is in it would be lost."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        is_empty = not any(output.iterdir())
    except OSError as error:
        raise BadInput(f"--output: {output} cannot be made ({error.strerror}); name a folder that can") from None
    if not is_empty:
        raise BadInput(f"--output: {output} is not empty; name a new folder for the checkpoint")


def _words(result: ReplayResult) -> str:
    made = f"{result.run_id}: steps {result.from_step + 1} to {result.to_step} made again"
    differs = result.first_difference
    if result.verdict == "equal":
        return f"{made}, every digest is equal"
    if differs is None:
        return f"{made}, not comparable: the run noted no digest for them"
    where = f"weights differ from step {differs.step} on ({differs.recorded} recorded, {differs.made} made)"
    if result.verdict == "different":
        return f"{made}: {where}"
    other = "other torch, hardware, threads or ranks, or kernels of a GPU that are not deterministic"
    why = other if not result.same_environment else "it began with another model"
    return f"{made}, not comparable ({why}): {where}"
