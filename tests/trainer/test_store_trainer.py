"""Training from a ledger made by hand: steps, resume, replay, stop."""

import json

import pytest
import torch
from torch.optim import lr_scheduler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from agrpo.store import checkpoints, events, metrics, policies, runs, samples, steps
from agrpo.trainer.work import environment
from tests.trainer import ledger
from tests.worlds import small_groups
from tests.worlds.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("ledgers_hold")


class Killed(BaseException):
    """Stands for SIGKILL: it leaves the loop without a checkpoint."""


class KillAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def attempt(tmp_path):
    store = ledger.open_store(tmp_path)
    yield small_groups.start_run(store)
    store.close()


def train(attempt, model_path, tmp_path, callback=None, parts=None, **settings):
    trainer, work, sync = ledger.trainer_for(attempt, model_path, ledger.config(tmp_path, **settings), **(parts or {}))
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train_in(work)
    return trainer, sync


def trained(attempt):
    """Every trained sample with its step, by the ledger."""
    last = steps.last_recorded(attempt.store, attempt.run_id)
    return [(step, row) for step in range(1, last + 1) for row in steps.rows(attempt.store, attempt.run_id, step)]


def test_a_run_trains_every_sample_once_and_ends_with_its_data(attempt, model_path, tmp_path):
    ledger.fill(attempt, 6)
    trainer, sync = train(attempt, model_path, tmp_path)
    assert trainer.state.global_step == 3
    assert sorted(row.sample_id for _, row in trained(attempt)) == list(range(1, 25))
    assert samples.pending(attempt.store, attempt.run_id) == []
    assert sync.calls == [("settle", 0)] + [("after_step", step) for step in (1, 2, 3)]
    assert [row.step for row in policies.policies(attempt.store, attempt.run_id)] == [0, 1, 2, 3]
    run = runs.get_run(attempt.store, attempt.run_id)
    assert (run.step, run.checkpoint_step, run.allowance_step) == (3, 3, 3)
    noted = (run.environment["threads"], run.environment["attention_backend"])
    assert noted == (torch.get_num_threads(), trainer.attention_backend) and trainer.attention_backend == "tree_cpu"


def test_the_final_checkpoint_loads_with_its_tokenizer(attempt, model_path, tmp_path):
    ledger.fill(attempt, 2)
    trainer, _ = train(attempt, model_path, tmp_path)
    cursor = checkpoints.cursor(attempt.store, attempt.run_id)
    loaded = AutoModelForCausalLM.from_pretrained(cursor.path)
    assert ledger.weights_digest(loaded) == ledger.weights_digest(trainer.model)
    assert loaded.config._attn_implementation == trainer.model.config._attn_implementation == "sdpa"
    assert len(AutoTokenizer.from_pretrained(cursor.path)) == len(AutoTokenizer.from_pretrained(model_path))
    with open(f"{cursor.path}/rollout_state.json") as file:
        assert json.load(file) == {"trained_prompt_index": 2}
    assert torch.isfinite(loaded(torch.tensor([[5, 6, 7]])).logits).all()


def test_killed_and_resumed_the_weights_are_bitwise_those_of_an_undisturbed_run(attempt, model_path, tmp_path):
    settings = {"save_steps": 1, "save_total_limit": 1, "gradient_accumulation_steps": 2}
    ledger.fill(attempt, 8)
    whole, _ = train(attempt, model_path, tmp_path / "whole", **settings)
    expected = [row.digest for row in policies.policies(attempt.store, attempt.run_id)]
    assert len(expected) == 5

    store = ledger.open_store(tmp_path)
    again = small_groups.start_run(store, "again")
    ledger.fill(again, 8)
    settings["save_steps"] = 100
    with pytest.raises(Killed):  # a checkpoint after step 1, killed after step 3
        train(again, model_path, tmp_path / "again", SaveAfter(1, KillAfter(3)), **settings)
    assert checkpoints.cursor(store, "again").step == 1
    assert steps.last_recorded(store, "again") == 4  # recorded before it was trained
    membership = trained(again)

    trainer, sync = train(again, model_path, tmp_path / "again", **settings)
    assert trainer.state.global_step == 4
    assert trained(again) == membership
    assert ledger.weights_digest(trainer.model) == ledger.weights_digest(whole.model) == expected[-1]
    # Nothing is published during the replay; step 4 was never published before.
    assert sync.calls == [("settle", 4)]
    assert [row.digest for row in policies.policies(store, "again")] == expected
    assert not [event for event in events.events(store, "again") if event.kind == "replay_differs"]
    assert [step for step, _ in metrics.series(store, "again")] == [1, 2, 3, 4]
    assert schedule(again) == schedule(attempt)
    store.close()


def schedule(attempt):
    """What the last checkpoint says of it."""
    return torch.load(f"{checkpoints.cursor(attempt.store, attempt.run_id).path}/scheduler.pt")


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=9)


def in_sequence(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, 0.5, total_iters=1), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [1])


@pytest.mark.parametrize("make_scheduler", [one_cycle, in_sequence])
def test_a_scripts_own_schedule_goes_on_where_it_was(attempt, model_path, tmp_path, make_scheduler):
    """One that changes more than the rate, and one that has no base rates."""

    def optimizers(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return optimizer, make_scheduler(optimizer)

    ledger.fill(attempt, 6)
    settings = {"parts": {"optimizers": optimizers}, "save_steps": 1}
    train(attempt, model_path, tmp_path / "whole", **settings)
    store = ledger.open_store(tmp_path)
    again = small_groups.start_run(store, "again")
    ledger.fill(again, 6)
    with pytest.raises(Killed):
        train(again, model_path, tmp_path / "again", KillAfter(2), **settings)
    train(again, model_path, tmp_path / "again", **settings)
    assert steps.digests(store, "again") == steps.digests(attempt.store, attempt.run_id)
    store.close()


class SaveAfter(TrainerCallback):
    """A checkpoint after one step, then what another callback does."""

    def __init__(self, step, then):
        self.step, self.then = step, then

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == self.step

    def on_step_begin(self, args, state, control, **kwargs):
        self.then.on_step_begin(args, state, control, **kwargs)


def test_a_replay_that_makes_other_weights_is_noticed(attempt, model_path, tmp_path):
    ledger.fill(attempt, 4)
    with pytest.raises(Killed):
        train(attempt, model_path, tmp_path, KillAfter(1))
    _, sync = train(attempt, model_path, tmp_path, learning_rate=2e-2)
    assert sync.calls == [("settle", 2)]
    assert [event.kind for event in events.events(attempt.store, attempt.run_id)].count("replay_differs") == 1


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("torch", "another", "other torch than before"),
        ("attention_backend", None, "an earlier version of agrpo noted no attention_backend"),
    ],
)
def test_an_environment_that_is_not_known_to_be_the_same_is_told(attempt, model_path, tmp_path, key, value, words):
    ledger.fill(attempt, 2)
    noted = {**environment("tree_cpu"), key: value}
    runs.set_environment(attempt, {name: known for name, known in noted.items() if known is not None})
    for _ in range(2):
        train(attempt, model_path, tmp_path)
    found = events.events(attempt.store, attempt.run_id)
    assert [event.message for event in found if event.kind == "environment_changed"] == [words]


def test_a_finished_run_trains_nothing_more(attempt, model_path, tmp_path):
    """Fault 12."""
    ledger.fill(attempt, 6)
    trainer, _ = train(attempt, model_path, tmp_path, max_steps=2)
    assert trainer.state.global_step == 2
    again, _ = train(attempt, model_path, tmp_path, max_steps=2)
    assert again.state.global_step == 2
    assert steps.last_recorded(attempt.store, attempt.run_id) == 2
    assert ledger.weights_digest(again.model) == ledger.weights_digest(trainer.model)


def test_nothing_to_train_is_an_end_and_no_error(attempt, model_path, tmp_path):
    """Fault 16: all rewards equal for a whole epoch."""
    worker = small_groups.start_worker(attempt)
    for claim in small_groups.groups.claim(attempt, worker, 2):
        small_groups.groups.commit(attempt, small_groups.group(claim, reason="no_signal"))
    ledger.say(attempt, worker)
    trainer, _ = train(attempt, model_path, tmp_path)
    assert trainer.state.global_step == 0
    assert checkpoints.cursor(attempt.store, attempt.run_id) is None


class StopInside(TrainerCallback):
    """Asks to stop while the second step is being computed, which draws random numbers like dropout."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.before = None

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.before = torch.get_rng_state()
            torch.rand(1)
            self.trainer.stop.request()


def test_a_stop_inside_a_step_leaves_a_checkpoint_of_the_step_before(attempt, model_path, tmp_path):
    ledger.fill(attempt, 6)
    trainer, work, _ = ledger.trainer_for(attempt, model_path, ledger.config(tmp_path))
    trainer.add_callback(StopInside(trainer))
    trainer.train_in(work)
    cursor = checkpoints.cursor(attempt.store, attempt.run_id)
    assert (trainer.state.global_step, cursor.step) == (1, 1)
    assert steps.last_recorded(attempt.store, attempt.run_id) == 2
    resumed, _ = train(attempt, model_path, tmp_path)
    assert resumed.state.global_step == 3
    assert sorted(row.sample_id for _, row in trained(attempt)) == list(range(1, 25))


def test_a_broken_off_step_leaves_no_trace_in_the_random_state(attempt, model_path, tmp_path):
    """Its dropout would draw other masks when it is made again."""
    ledger.fill(attempt, 6)
    trainer, work, _ = ledger.trainer_for(attempt, model_path, ledger.config(tmp_path))
    drawing = StopInside(trainer)
    trainer.add_callback(drawing)
    trainer.train_in(work)
    path = checkpoints.cursor(attempt.store, attempt.run_id).path
    saved = torch.load(f"{path}/rng_state.pth", weights_only=False)
    assert torch.equal(saved["cpu"], drawing.before)


def test_a_stop_that_is_asked_for_before_the_first_step_is_kept(attempt, model_path, tmp_path):
    ledger.fill(attempt, 2)
    trainer, work, _ = ledger.trainer_for(attempt, model_path, ledger.config(tmp_path))
    trainer.stop.request()
    trainer.train_in(work)
    assert trainer.state.global_step == 0


def test_a_stop_request_in_the_store_ends_the_run_between_steps(attempt, model_path, tmp_path):
    ledger.fill(attempt, 6)
    runs.request(attempt.store, attempt.run_id, "stop")
    trainer, _ = train(attempt, model_path, tmp_path)
    assert trainer.state.global_step == 0
    assert trainer.stop.requested


@pytest.mark.parametrize("settings", [{"score_centering": False}, {"bf16": True}, {"gradient_checkpointing": False}])
def test_other_ways_to_train(attempt, model_path, tmp_path, settings):
    ledger.fill(attempt, 2)
    trainer, _ = train(attempt, model_path, tmp_path, **settings)
    ((_, values),) = metrics.series(attempt.store, attempt.run_id)
    assert trainer.state.global_step == 1
    assert 0 < values["grad_norm"] < float("inf") and abs(values["loss"]) < float("inf")
    assert ("sampling/sampler_mass" in values) == settings.get("score_centering", True)


def test_completions_are_printed_when_asked_for(attempt, model_path, tmp_path, capsys):
    ledger.fill(attempt, 2)
    train(attempt, model_path, tmp_path, log_completions=True, num_completions_to_print=3)
    printed = capsys.readouterr().out
    assert "step 1" in printed
    assert printed.count("+1.00") + printed.count("-1.00") == 3


def test_metrics_of_a_step(attempt, model_path, tmp_path):
    ledger.fill(attempt, 4)
    train(attempt, model_path, tmp_path)
    (first, values), (second, later) = metrics.series(attempt.store, attempt.run_id)
    assert (first, second) == (1, 2)
    assert values["reward"] == 0.5 and values["reward_kept"] == 0.5 and values["reward_group_std"] == 0.5
    assert "reward" not in later  # all groups were scored before the first log
    assert values["batch/groups_per_step"] == 2 and values["batch/samples_per_step"] == 8
    assert values["num_tokens"] == values["batch/forwarded_tokens_per_step"] == values["batch/row_tokens_max"]
    raw_tokens = values["sample/forwarded_tokens_mean"] * 8
    assert values["batch/packing_ratio"] == pytest.approx(raw_tokens / values["num_tokens"]) and raw_tokens > 60
    assert (
        runs.get_run(attempt.store, attempt.run_id).allowance_tokens == 100 * later["sample/forwarded_tokens_mean"] * 8
    )
    assert values["batch/samples_per_row"] == 8 and values["batch/row_imbalance"] == 1 and values["batch/pad_frac"] == 0
    assert values["batch/row_fill_frac"] == values["num_tokens"] / 64
    # No token of these random rollouts is trained twice.
    assert values["batch/masked_token_frac"] == pytest.approx(
        1 - values["batch/trained_tokens_per_step"] / values["num_tokens"]
    )
    assert later["num_tokens"] == values["num_tokens"] + later["batch/forwarded_tokens_per_step"]
    assert 0 < values["entropy"] < 10 and 0 < values["sampling/sampler_mass"] < 1
    assert values["sampling/importance_sampling_ratio/min"] <= values["sampling/importance_sampling_ratio/mean"]
    assert values["sample/staleness_max"] == 0 and later["sample/staleness_max"] == 1
    for name in (
        "loss",
        "grad_norm",
        "learning_rate",
        "perf/step_s",
        "perf/fwd_bwd_s",
        "perf/fwd_s",
        "perf/optimizer_s",
    ):
        assert name in values, name
    assert values["perf/fwd_s"] <= values["perf/fwd_bwd_s"] <= values["perf/step_s"]
