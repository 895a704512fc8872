"""The trainer's process: `python -m agrpo.trainer.main --store URL --run RUN --token N --process-id P`, or torchrun."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from agrpo import runfile
from agrpo.errors import BadInput
from agrpo.launch import exits
from agrpo.launch.identity import read_identity
from agrpo.launch.orphans import end_with_parent
from agrpo.store import Attempt, Store, runs
from agrpo.trainer.assembly import assemble
from agrpo.trainer.policy_model import load_policy, load_tokenizer
from agrpo.trainer.run_config import make_config
from agrpo.trainer.store_trainer import StoreTrainer


def train(attempt: Attempt) -> None:
    """Train a run that was started from a run file, until its end or a stop."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # nobody watches the log of a child
    stored = runs.get_run(attempt.store, attempt.run_id)
    run, run_dir = runfile.RunFile.model_validate(stored.config), Path(stored.run_dir)
    settings: dict[str, Any] = {"disable_tqdm": True, "report_to": "none"}
    settings |= runfile.training_arguments(run) | {"output_dir": str(run_dir / "checkpoints")}
    args = make_config(run, settings)
    if args.world_size != run.trainer.ranks:
        raise BadInput(
            f"trainer.ranks is {run.trainer.ranks}, but {args.world_size} processes came up: start them with torchrun "
            "on CPUs, with accelerate launch on GPUs"
        )
    tokenizer = load_tokenizer(run.model.path, args)
    trainer = StoreTrainer(load_policy(run.model.path, args), args, tokenizer)
    if args.fsdp and not trainer.is_fsdp_enabled:
        raise BadInput("fsdp is set, but the processes came up without it: start them with accelerate launch on GPUs")
    trainer.train_in(
        assemble(trainer, attempt, run_dir, run_dir / "checkpoints", tokenizer, keep_payloads=run.store.keep_payloads)
    )
    if trainer.stop.requested:  # whoever asked: only a run that is trained to its end exits with 0
        raise SystemExit(exits.STOPPED)


def main(arguments: Sequence[str]) -> None:
    """Read the command line, then train."""
    end_with_parent()
    mine = read_identity("agrpo.trainer.main", "Trainer of a run.", arguments)
    train(Attempt(Store.open(mine.store_url, create=False), mine.run_id, mine.token))


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
