"""The samples that packing is measured with: made here, or those of a recorded run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from agrpo.store import Store, samples, steps

Tokens = tuple[np.ndarray, np.ndarray]
"""Token ids and which of them are trained."""


@dataclass(frozen=True, slots=True)
class Case:
    """The samples of one row."""

    name: str
    samples: Callable[[int], list[Tokens]]
    """From the size of the vocabulary."""


def grouped(name: str, num_groups: int, num_rollouts: int, prompt: int, completion: int) -> Case:
    """Groups of rollouts after a common prompt, which part at their first token; random tokens."""

    def make(num_vocab: int) -> list[Tokens]:
        random = np.random.default_rng(0)
        found = []
        for _ in range(num_groups):
            head = random.integers(0, num_vocab, prompt)
            for rollout in range(num_rollouts):
                tokens = np.concatenate([head, [rollout], random.integers(0, num_vocab, completion - 1)])
                found.append((tokens.astype(np.int32), np.arange(len(tokens)) >= prompt))
        return found

    return Case(name, make)


CPU_CASES = [
    grouped("P50 R12 x8 groups", 8, 8, 50, 12),
    grouped("P400 R40", 1, 8, 400, 40),
    grouped("P1000 R100", 1, 8, 1000, 100),
    grouped("P100 R100", 1, 8, 100, 100),
    grouped("nothing shared", 8, 1, 100, 100),
]
GPU_CASES = [grouped("P1000 R250 x4 groups", 4, 8, 1000, 250), grouped("nothing shared", 8, 1, 1000, 1000)]


def recorded(url: str, run_id: str) -> Iterator[Case]:
    """The first row of every recorded step of a run, as it was trained."""
    store = Store.open(url)
    try:
        for step in range(1, steps.last_recorded(store, run_id) + 1):
            members = [row.sample_id for row in steps.rows(store, run_id, step) if row.micro_batch == row.rank == 0]
            held = [(sample.token_ids, sample.trained) for sample in samples.load(store, members)]
            yield Case(f"{run_id} step {step}", lambda _, held=held: held)
    finally:
        store.close()
