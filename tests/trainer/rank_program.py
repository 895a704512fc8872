"""Trainings over hand-recorded steps, by 1, 2 and 4 processes: `python -m tests.trainer.rank_program FOLDER`.

A folder in FOLDER names a run: kind, micro-batches, ranks. Rank 0 leaves what the step did: the change of the weights
under plain gradient descent, and the logged loss.
"""

import dataclasses
import os
import sys
import traceback
from pathlib import Path

import torch

from agrpo.inference.command import free_port
from agrpo.store import Attempt, Store
from agrpo.trainer import ranks
from tests.trainer import ledger
from tests.worlds.processes import eventually


def train_one(folder: Path, run_id: str) -> None:
    """Replay the recorded first step of a run."""
    attempt = Attempt(Store.open(f"sqlite:///{folder}/agrpo.db"), run_id, 1)
    args = ledger.config(
        folder / run_id,
        optim="sgd",
        learning_rate=1.0,
        max_grad_norm=0.0,
        max_steps=1,
        gradient_accumulation_steps=int(run_id.split("-")[1]),
        save_strategy="steps" if run_id.startswith("value") else "no",
    )
    trainer, work, _ = ledger.trainer_for(attempt, folder / "model", args, token_budget=512)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    if run_id.startswith("value"):
        trainer._row_loss = advantages_as_losses(trainer._row_loss)
    trainer.train_in(work)
    if ranks.rank() == 0:
        change = {name: before[name] - parameter.detach() for name, parameter in trainer.model.named_parameters()}
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        torch.save({"change": change, "losses": losses}, folder / f"{run_id}.pt")


def advantages_as_losses(row_loss):
    """A loss of which every term is its token's advantage, whatever the model says."""

    def loss(model, row, attention):
        result = row_loss(model, row, attention)
        return dataclasses.replace(result, total=result.total * 0 + row.advantages.sum())

    return loss


def as_rank(rank: int, num_ranks: int, folder: Path, names: list[str]) -> None:
    """Become one of `num_ranks` processes, as torchrun would have started it."""
    place = folder / f"port{num_ranks}"
    if rank == 0:
        place.with_suffix(".new").write_text(str(free_port()))
        place.with_suffix(".new").rename(place)
    eventually(place.exists, within_s=60)
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    os.environ.update({**numbers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": place.read_text()})
    for name in names:
        train_one(folder, name)


def main(folder: Path) -> int:
    """Train the recorded step of every run of the store with as many processes as its name says.

    The processes are forks of this one, which has imported everything and computed nothing.
    """
    names = [path.name for path in sorted(folder.glob("*-*-*")) if path.is_dir()]
    for num_ranks in sorted({int(name.split("-")[2]) for name in names}):
        mine = [name for name in names if name.endswith(f"-{num_ranks}")]
        children = []
        for rank in range(num_ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    as_rank(rank, num_ranks, folder, mine)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(pid)
        if any(os.waitpid(pid, 0)[1] for pid in children):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
