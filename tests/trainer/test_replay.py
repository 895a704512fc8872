"""A recorded run made again in this process, from the model and from a checkpoint."""

import shutil

import pytest
import torch

from agrpo.errors import BadInput
from agrpo.store import checkpoints, forks, leases, metrics, runs, steps
from agrpo.trainer.checkpoint import MARKER, marker_digest
from agrpo.trainer.replay import replay
from agrpo.trainer.work import environment, repeats_itself
from tests.trainer import ledger
from tests.worlds.small_groups import DEAD
from tests.worlds.tiny_model import make_tiny_model
from tests.worlds.verified import check_store

NUM_STEPS = 3
BETAS = {"adam_beta1": 0.5, "adam_beta2": 0.6}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A finished run of three steps, with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("replay")
    model = make_tiny_model(folder / "model")
    store = ledger.open_store(folder)
    trainer_section = {"learning_rate": 1e-2, "groups_per_step": 2, "training_arguments": {"use_cpu": True}}
    config = {
        "name": "small",
        "model": {"path": str(model)},
        "data": {"rows": "a:b"},
        "rewards": ["a:b"],
        "trainer": {**trainer_section, "max_staleness": 100, "gradient_checkpointing": True},
    }
    runs.create_run(store, "small", config, "hash", str(folder))
    attempt = leases.acquire(store, "small", DEAD)
    ledger.fill(attempt, 2 * NUM_STEPS)
    args = ledger.config(folder, save_steps=1)
    trainer, work, _ = ledger.trainer_for(attempt, model, args)
    trainer.train_in(work)
    yield attempt
    check_store(store)
    store.close()


def test_from_the_model_every_step_has_the_recorded_weights(recorded):
    found = replay(recorded.store, "small", NUM_STEPS)
    assert (found.verdict, found.same_environment) == ("equal", True)
    assert [check.step for check in found.checks] == [1, 2, 3]
    assert found.start is not None and found.start.is_equal


def test_from_a_checkpoint_into_another(recorded, tmp_path):
    output = tmp_path / "step-2"
    found = replay(recorded.store, "small", 2, from_step=1, output=output)
    assert (found.verdict, [check.step for check in found.checks]) == ("equal", [2])
    assert (output / MARKER).exists() and (output / "optimizer.pt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]
    again = replay(recorded.store, "small", 3, from_step=2, start=output)
    assert (again.verdict, [check.step for check in again.checks]) == ("equal", [3])


def test_a_fork_goes_on_with_its_own_settings_and_repeats_itself(recorded, tmp_path):
    """From a checkpoint that a replay made, which knows of no intervals."""
    store, made = recorded.store, tmp_path / "made"
    replay(store, "small", 2, output=made)
    parent = runs.get_run(store, "small")
    other = {"learning_rate": 2e-2, "training_arguments": {"use_cpu": True, **BETAS}}
    config = {**parent.config, "trainer": {**parent.config["trainer"], **other}}
    forks.fork(store, "small", 2, "fork", config, "other", str(tmp_path), (str(made), marker_digest(made)))
    fork = leases.acquire(store, "fork", DEAD)
    ledger.fill(fork, 4)
    args = ledger.config(tmp_path, save_steps=1, learning_rate=2e-2, **BETAS)
    trainer, work, _ = ledger.trainer_for(fork, parent.config["model"]["path"], args)
    trainer.train_in(work)
    assert [(step, values["learning_rate"]) for step, values in metrics.series(store, "fork")] == [(3, 2e-2), (4, 2e-2)]
    assert {group["betas"] for group in trainer.optimizer.param_groups} == {(0.5, 0.6)}
    assert [row.step for row in checkpoints.all(store, "fork")] == [2, 3, 4]
    for begin in (2, 3):
        assert replay(store, "fork", 4, from_step=begin).verdict == "equal"


def test_another_model_cannot_be_compared_and_other_digests_are_different(recorded, tmp_path):
    run = runs.get_run(recorded.store, "small")
    digests = steps.digests(recorded.store, "small")
    steps.finish(recorded, 2, "tampered", {})
    try:
        found = replay(recorded.store, "small", 2)
        assert found.verdict == "different"
        assert found.first_difference is not None and found.first_difference.step == 2
        runs.set_environment(recorded, {**(run.environment or {}), "attention_backend": "another"})
        assert replay(recorded.store, "small", 2).verdict == "not comparable"
    finally:
        steps.finish(recorded, 2, digests[2], {})
    runs.set_environment(recorded, {**(run.environment or {}), "torch": "another"})
    assert replay(recorded.store, "small", 2).verdict == "equal"  # the same bits need no excuse
    runs.set_environment(recorded, run.environment or {})


@pytest.mark.parametrize(
    ("steps_", "words"),
    [
        ({"to_step": 4}, "the run has finished steps 1 to 3"),
        ({"to_step": 1, "from_step": 2}, "step 1 cannot be made from step 2"),
        ({"to_step": 9, "from_step": 7}, "no checkpoint of step 7"),
    ],
)
def test_steps_that_are_not_there_are_refused(recorded, steps_, words):
    with pytest.raises(BadInput, match=words):
        replay(recorded.store, "small", **steps_)


def test_a_damaged_checkpoint_is_no_beginning(recorded, tmp_path):
    folder = runs.get_run(recorded.store, "small").run_dir
    shutil.move(f"{folder}/checkpoints/checkpoint-1/{MARKER}", tmp_path / MARKER)
    try:
        with pytest.raises(BadInput, match="never completed"):
            replay(recorded.store, "small", 2, from_step=1)
    finally:
        shutil.move(tmp_path / MARKER, f"{folder}/checkpoints/checkpoint-1/{MARKER}")


def test_a_gpu_repeats_itself_only_with_deterministic_kernels():
    """Else other bits would count as a difference (exit 1), when they say nothing (exit 3)."""
    assert environment("tree_cpu")["deterministic"] is False
    torch.use_deterministic_algorithms(True)
    try:
        assert environment("tree_cpu")["deterministic"] is True
    finally:
        torch.use_deterministic_algorithms(False)
    assert repeats_itself({"device": "cpu", "deterministic": False})
    assert repeats_itself({"device": "H200", "deterministic": True})
    assert not repeats_itself({"device": "H200", "deterministic": False})
