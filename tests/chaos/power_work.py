"""What is going on when the power fails: `python -m tests.chaos.power_work FOLDER groups|checkpoints [SYNCHRONOUS]`.

Works on the store that lies in the folder, and writes a line to the file `acknowledged` whenever something is done.
"""

import sys
from pathlib import Path

from agrpo.store import Store, drafts, groups, leases, sqlite, steps
from agrpo.store.drafts import NewTurn
from agrpo.trainer.checkpoint import CheckpointShelf
from tests.worlds.small_groups import DEAD, generate, group, scored, start_run, start_worker, turn

RUN = "small"
NUM_GROUPS = 12
NUM_CHECKPOINTS = 3


def main(folder: Path, what: str, synchronous: str = "FULL") -> None:
    # Small enough that the log is moved into the database again and again.
    pragmas = [pragma.replace("synchronous = FULL", f"synchronous = {synchronous}") for pragma in sqlite.PRAGMAS]
    sqlite.PRAGMAS = (*pragmas, "PRAGMA wal_autocheckpoint = 20")
    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    with (folder / "acknowledged").open("w", buffering=1) as said:
        for line in generated(store) if what == "groups" else checkpointed(store, folder):
            print(line, file=said)
    store.close()


def generated(store: Store):
    """Groups of a few thousand tokens, each with a turn that is kept before."""
    attempt = start_run(store)
    worker = start_worker(attempt)
    for number in range(NUM_GROUPS):
        (claim,) = groups.claim(attempt, worker, 1)
        long = turn([1, 2, 3], [4 + number, *range(3000)])
        drafts.add(attempt, [NewTurn(claim.group_id, 0, 0, 0, None, long)])
        yield f"turn of {claim.group_id}"
        groups.commit(attempt, group(claim, scored([long]), scored([turn([1, 2, 3], [6])], 0.0, -1.0)))
        yield f"group {claim.group_id}"


def checkpointed(store: Store, folder: Path):
    """A checkpoint after each step; the one before is deleted."""
    attempt = start_run(store)
    generate(attempt, start_worker(attempt), NUM_CHECKPOINTS)
    shelf = CheckpointShelf(attempt, folder / "run" / "checkpoints")
    for step in range(1, NUM_CHECKPOINTS + 1):
        steps.record(attempt, step, [steps.StepRow(0, 0, 0, 2 * step - 1), steps.StepRow(0, 0, 1, 2 * step)], 0)
        steps.finish(attempt, step, f"weights {step}", {})
        inner = shelf.begin(step) / f"checkpoint-{step}"
        (inner / "nested").mkdir(parents=True)
        for name, content in contents(step).items():
            (inner / name).write_bytes(content)
        shelf.finish(step, inner)
        yield f"checkpoint {step}"
        shelf.rotate(1)


def contents(step: int) -> dict[str, bytes]:
    """The files of a checkpoint."""
    return {"model.safetensors": bytes([step]) * 9000, "nested/rng_state.pth": b"rng %d" % step}


def open_again(folder: Path) -> Store:
    """The store as the next attempt finds it."""
    return Store.open(f"sqlite:///{folder}/agrpo.db", create=False)


def take_over(store: Store):
    """The next attempt."""
    return leases.acquire(store, RUN, DEAD)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
