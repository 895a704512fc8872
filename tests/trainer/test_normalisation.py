"""Fault 1: one gradient, however the tokens of a step are split into micro-batches and ranks."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from agrpo.records import GroupCommit, Rollout, ScoredRollout, TurnRecord
from agrpo.sequences import build_sequences
from agrpo.store import groups, samples, steps
from tests.trainer import ledger
from tests.worlds import small_groups
from tests.worlds.tiny_model import make_tiny_model

RANKS = (1, 2, 4)
MICRO_BATCHES = (1, 2, 5)


def record_step(attempt, num_micro_batches, num_ranks, seed):
    """All pending samples at random places: rows are ragged, and the last rank's first row is empty if it can be."""
    rng = np.random.default_rng(seed)
    places = [(m, rank) for m in range(num_micro_batches) for rank in range(num_ranks)]
    if len(places) > 1:
        places.remove((0, num_ranks - 1))
    rows = [
        steps.StepRow(*places[int(rng.integers(len(places)))], position, sample.sample_id)
        for position, sample in enumerate(samples.pending(attempt.store, attempt.run_id))
    ]
    steps.record(attempt, 1, rows, 0)


def rollout_of(num_tokens, advantage):
    turn = TurnRecord([5, 6], [7] * num_tokens, [-1.0] * num_tokens)
    rollout = Rollout([], turn.output_ids, [turn])
    return ScoredRollout(rollout, build_sequences([turn]), {"exact": advantage}, advantage, advantage, True)


def fill_with_values(attempt):
    """100 trained tokens at 2.0 and 900 at 0.5."""
    worker = small_groups.start_worker(attempt)
    (claim,) = groups.claim(attempt, worker, 1)
    rollouts = [rollout_of(25, 2.0) for _ in range(4)] + [rollout_of(100, 0.5) for _ in range(9)]
    groups.commit(attempt, GroupCommit(claim.group_id, 0, 0, 0, 0, [], [5, 6], rollouts))
    ledger.say(attempt, worker)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each split made of the same samples, in so many real processes."""
    folder = tmp_path_factory.mktemp("ranks")
    make_tiny_model(folder / "model")
    store = ledger.open_store(folder)
    gradients = [("gradient", m, num_ranks) for m in MICRO_BATCHES for num_ranks in RANKS]
    for kind, num_micro_batches, num_ranks in [*gradients, ("value", 5, 1), ("value", 2, 2), ("value", 1, 4)]:
        name = f"{kind}-{num_micro_batches}-{num_ranks}"
        (folder / name).mkdir()
        attempt = small_groups.start_run(store, name)
        if kind == "value":
            fill_with_values(attempt)
        else:
            ledger.fill(attempt, 5)
        record_step(attempt, num_micro_batches, num_ranks, seed=num_micro_batches)
    store.close()
    command = [sys.executable, "-m", "tests.trainer.rank_program", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for path in folder.glob("value-*/checkpoints/checkpoint-1"):
        assert len(list(path.glob("rng_state*"))) == int(path.parts[-3].split("-")[2])  # every rank wrote its part
    return {path.stem: torch.load(path) for path in folder.glob("*.pt")}


def test_one_gradient(results):
    reference = results["gradient-1-1"]["change"]
    assert max(float(change.abs().max()) for change in reference.values()) > 1e-3
    for name in (f"gradient-{m}-{num_ranks}" for m in MICRO_BATCHES for num_ranks in RANKS):
        for parameter, change in results[name]["change"].items():
            difference = float((change - reference[parameter]).abs().max())
            assert difference < 1e-6, (name, parameter, difference)


def test_a_hundred_tokens_at_2_and_nine_hundred_at_a_half_give_065(results):
    losses = [result["losses"] for name, result in results.items() if name.startswith("value")]
    assert losses == [[pytest.approx(0.65, abs=1e-6)]] * 3
