"""Steps made again from the ledger alone: `python -m agrpo.trainer.replay ...`, or torchrun; `agrpo replay` starts it.

Nothing of the run is written: no lease is taken, and a living run does not notice.
"""

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from agrpo import runfile
from agrpo.errors import BadInput
from agrpo.launch import exits
from agrpo.store import Store, checkpoints, events, policies, runs, steps
from agrpo.trainer import ranks
from agrpo.trainer.checkpoint import Choice, damage, seal
from agrpo.trainer.feed import Ending, StepOrder, recorded_order
from agrpo.trainer.policy_model import load_policy, load_tokenizer
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.replay_result import ReplayResult, StepCheck
from agrpo.trainer.run_config import make_config
from agrpo.trainer.store_trainer import StoreTrainer
from agrpo.trainer.work import environment, repeats_itself

NEVER = 1 << 30


class ReplayWork:
    """The duties of a trainer that makes recorded steps again."""

    token_budget = 1
    """Rows are as they were recorded: nothing is planned."""

    def __init__(self, store: Store, run_id: str, begin: Choice, to_step: int, output: Path | None) -> None:
        self.checks: list[StepCheck] = []
        self.start_check: StepCheck | None = None
        self.weights: PolicyWeights | None = None
        self._store = store
        self._run_id = run_id
        self._begin = begin
        self._to_step = to_step
        self._output = output
        self._digests = steps.digests(store, run_id)

    @property
    def store(self) -> Store:
        """Where samples lie."""
        return self._store

    def start(self) -> Choice:
        """Where it begins."""
        return self._begin

    def begin(self, step: int) -> None:
        """Compare what was loaded with what the run had then."""
        known = {row.step: row.digest for row in policies.policies(self._store, self._run_id)}
        recorded = self._digests.get(step, known.get(step))
        self.start_check = self._checked(step, recorded)

    def next_order(self, step: int) -> StepOrder | Ending:
        """The recorded order, up to the last step asked for."""
        if step > self._to_step:
            return "stopped"
        is_first = ranks.rank() == 0
        order: StepOrder = ranks.from_first(
            recorded_order(self._store, self._run_id, step, ranks.world_size()) if is_first else None
        )
        return order

    def alive(self, detail: str) -> None:
        """Nobody watches a replay."""

    def close(self, order: StepOrder) -> None:
        """Compare the weights with the recorded ones."""
        checked = self._checked(order.step, self._digests.get(order.step))
        if checked is not None:
            self.checks.append(checked)

    def log(self, step: int, values: dict[str, float]) -> None:
        """The run has these already."""

    def checkpoint_is_due(self) -> bool:
        """Only at the end."""
        return False

    def begin_checkpoint(self, step: int) -> Path:
        """An empty folder beside the output."""
        assert self._output is not None
        folder = self._output.with_name(f".{self._output.name}")
        if ranks.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        ranks.all_here()
        return folder

    def finish_checkpoint(self, step: int, filled: Path, limit: int | None) -> None:
        """Complete the output."""
        assert self._output is not None
        ranks.all_here()
        if ranks.rank() == 0:
            seal(filled, self._output)
            shutil.rmtree(filled.parent, ignore_errors=True)
        ranks.all_here()

    def _checked(self, step: int, recorded: str | None) -> StepCheck | None:
        """On rank 0, when the run noted a digest; every rank takes part, as sharded weights are to be gathered."""
        assert self.weights is not None
        self.weights.gather()
        if recorded is None or ranks.rank() > 0:
            return None
        return StepCheck(step, recorded, self.weights.digest())


def replay(
    store: Store, run_id: str, to_step: int, from_step: int = 0, output: Path | None = None, start: Path | None = None
) -> ReplayResult:
    """Make the steps after `from_step` again, from that step's checkpoint, or from the model the run began with.

    `start`: a checkpoint of `from_step` that the run does not name. `output`: becomes a checkpoint of `to_step`.
    Raises BadInput for steps that cannot be made.
    """
    stored = runs.get_run(store, run_id)
    run = runfile.RunFile.model_validate(stored.config)
    begin = Choice(start, from_step, ()) if start else _beginning(store, run_id, from_step)
    _refuse_impossible(store, run_id, from_step, to_step)
    args = make_config(run, _settings(run, output))
    work = ReplayWork(store, run_id, begin, to_step, output)
    trainer = StoreTrainer(load_policy(run.model.path, args), args, load_tokenizer(run.model.path, args))
    work.weights = PolicyWeights(trainer.policy)
    trainer.train_in(work)
    now = environment(trainer.attention_backend)
    same = stored.environment == now and repeats_itself(now) and not _environment_changed(store, run_id)
    return ReplayResult(run_id, from_step, to_step, work.start_check, work.checks, same)


def _settings(run: runfile.RunFile, output: Path | None) -> dict[str, Any]:
    quiet = {"disable_tqdm": True, "report_to": "none", "logging_strategy": "no", "save_steps": NEVER}
    scratch = {"output_dir": str(output or run.run_dir), "save_strategy": "no" if output is None else "steps"}
    return {**runfile.training_arguments(run), **quiet, **scratch}


def _beginning(store: Store, run_id: str, from_step: int) -> Choice:
    if from_step == 0:
        return Choice(None, 0, ())
    for row in checkpoints.all(store, run_id):
        if row.step == from_step:
            problem = damage(Path(row.path), row.digest)
            if problem is None:
                return Choice(Path(row.path), from_step, ())
            raise BadInput(f"checkpoint of step {from_step}: {problem}; begin at another step")
    there = ", ".join(str(row.step) for row in checkpoints.all(store, run_id)) or "none"
    raise BadInput(
        f"run {run_id!r} has no checkpoint of step {from_step} to begin with; there are: 0 (the model), {there}"
    )


def _refuse_impossible(store: Store, run_id: str, from_step: int, to_step: int) -> None:
    last = steps.last_finished(store, run_id)
    if not from_step <= to_step <= last:
        raise BadInput(f"step {to_step} cannot be made from step {from_step}: the run has finished steps 1 to {last}")
    pruned = steps.pruned(store, run_id, from_step, to_step)
    if pruned is not None:
        raise BadInput(f"the tokens of step {pruned} were pruned (store.keep_payloads): begin at or after it")


def _environment_changed(store: Store, run_id: str) -> bool:
    return any(event.kind == "environment_changed" for event in events.events(store, run_id))


def main(arguments: Sequence[str]) -> None:
    """Read the command line, replay, leave the result in a file."""
    parser = argparse.ArgumentParser(prog="python -m agrpo.trainer.replay", description="Make steps again.")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--to-step", required=True, type=int, help="last step to make")
    parser.add_argument("--from-step", default=0, type=int, help="step to begin after")
    parser.add_argument("--start", type=Path, help="checkpoint to begin with")
    parser.add_argument("--output", type=Path, help="folder that becomes a checkpoint")
    parser.add_argument("--result", required=True, type=Path, help="file for the result")
    given = parser.parse_args(arguments)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    store = Store.open(given.store, create=False)
    result = replay(store, given.run, given.to_step, given.from_step, given.output, given.start)
    if ranks.rank() == 0:
        given.result.write_text(json.dumps(dataclasses.asdict(result)))


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
