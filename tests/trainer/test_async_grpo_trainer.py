"""The documented trainer in a plain script."""

import functools

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM

from agrpo import AsyncGRPOConfig, AsyncGRPOTrainer, AsyncRolloutLoop
from agrpo.errors import BadInput
from agrpo.store import Store, events, metrics, policies, runs, servers
from tests.trainer import ledger
from tests.worlds.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("ledgers_hold")


def digits(completions, **columns):
    """Share of digits in a completion."""
    texts = [completion[-1]["content"] for completion in completions]
    return [sum(letter.isdigit() for letter in text) / max(len(text), 1) for text in texts]


class OwnLoop(AsyncRolloutLoop):
    """A subclass at module level, as the documentation asks for."""

    def filter_prompt(self, row_index, row, epoch):
        return row_index != 0


class Counting:
    """An environment of the documented kind."""

    def reset(self, **kwargs):
        return "Count."

    def get_reward(self):
        return 1.0


class OwnTrainer(AsyncGRPOTrainer):
    loop_cls = OwnLoop


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def dataset(rows=8):
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"say {i}"}]} for i in range(rows)])


def arguments(folder, **settings):
    defaults = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "num_generations": 4}
    return AsyncGRPOConfig(output_dir=str(folder), **{**defaults, **settings})


def make(model_path, folder, **parts):
    given = {"reward_funcs": digits, "args": arguments(folder), "train_dataset": dataset(), **parts}
    return AsyncGRPOTrainer(str(model_path), **given)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"reward_funcs": None}, "reward_funcs is missing"),
        ({"reward_funcs": []}, "reward_funcs is missing"),
        ({"reward_funcs": "some/reward-model"}, "server of its own"),
        ({"reward_funcs": [digits, 3]}, "cannot be called"),
        ({"train_dataset": None}, "train_dataset is missing"),
        ({"train_dataset": Dataset.from_list([{"prompt": "say 1"}])}, "no conversation"),
        ({"train_dataset": Dataset.from_list([{"question": "say 1"}])}, "no `prompt` column"),
        ({"train_dataset": [{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}]}, "images"),
        ({"train_dataset": []}, "empty"),
        ({"peft_config": object()}, "train all weights"),
        ({"tools": [digits]}, "tool 'digits' cannot be described"),
        ({"environment_factory": dict}, "environment dict has no reset"),
        ({"environment_factory": Counting, "train_dataset": None}, "max_steps is missing"),
        ({"environment_factory": {"a": Counting}}, "a column 'environment'"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(model_path, tmp_path, parts, words):
    with pytest.raises(BadInput, match=words) as refusal:
        make(model_path, tmp_path, **parts)
    assert "\n" not in str(refusal.value)


def test_an_environment_needs_neither_rewards_nor_data(model_path, tmp_path):
    parts = {"reward_funcs": None, "train_dataset": None, "args": arguments(tmp_path, max_steps=1)}
    trainer = make(model_path, tmp_path, environment_factory=Counting, **parts)
    assert trainer.reward_funcs == () and trainer.environment_factory is Counting


def test_a_lambda_as_reward_is_named_before_anything_starts(model_path, tmp_path):
    trainer = make(model_path, tmp_path, reward_funcs=[digits, lambda completions, **_: [0.0] * len(completions)])
    with pytest.raises(TypeError, match="lambda"):
        trainer.train()
    assert not (tmp_path / "agrpo.db").exists()


def test_resuming_what_was_never_begun_is_refused(model_path, tmp_path):
    with pytest.raises(BadInput, match="no run to resume"):
        make(model_path, tmp_path).train(resume_from_checkpoint=True)


def test_a_stop_is_over_when_training_is_asked_for_again(model_path, tmp_path):
    """After Ctrl-C a notebook calls train() again."""
    trainer = make(model_path, tmp_path)
    trainer.stop.request()
    with pytest.raises(BadInput):
        trainer.train(resume_from_checkpoint=True)
    assert not trainer.stop.requested


def test_a_model_in_memory_is_taken_as_it_is_and_can_be_used_afterwards(model_path, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(model_path)
    trainer = AsyncGRPOTrainer(model, functools.partial(digits), arguments(tmp_path), dataset())
    assert trainer.model is model
    assert trainer.model_name == str(model_path)
    assert trainer.processing_class.padding_side == "left"


def test_a_script_trains_against_a_real_server_and_resumes(trained_vllm_server):
    folder = trained_vllm_server.weights_dir.parent  # the server reads weights from nowhere else
    args = arguments(
        folder,
        vllm_server_base_url=trained_vllm_server.url,
        max_completion_length=8,
        max_steps=2,
        groups_per_step=2,
        learning_rate=1e-3,
        num_sampler_logprobs=4,
    )
    model = str(trained_vllm_server.model_path)
    trainer = OwnTrainer(model=model, reward_funcs=digits, args=args, train_dataset=dataset())
    before = ledger.weights_digest(trainer.model)
    done = trainer.train()
    assert done.global_step == 2
    trained = ledger.weights_digest(trainer.model)
    assert trained != before
    assert ledger.weights_digest(AutoModelForCausalLM.from_pretrained(folder / "checkpoint-2")) == trained

    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    run = runs.get_run(store, "train-1")
    assert (run.status, run.step, run.checkpoint_step, run.policy_version) == ("finished", 2, 2, 2)
    assert [row.weight_version for row in servers.servers(store, "train-1")] == [2]
    assert [row.version for row in policies.policies(store, "train-1")] == [0, 1, 2]
    assert "probe_skipped" not in {event.kind for event in events.events(store, "train-1")}
    (_, first), _ = metrics.series(store, "train-1")
    # Generated under the weights that the first step starts from: the same policy.
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=0.02)
    assert first["sampling/sampling_logp_difference/max"] < 0.01
    assert first["sampling/masked_mean"] == 0

    again = OwnTrainer(model=model, reward_funcs=digits, args=args, train_dataset=dataset())
    assert again.train(resume_from_checkpoint=True).global_step == 2
    assert ledger.weights_digest(again.model) == trained
    assert runs.get_run(store, "train-1").step == 2

    new = OwnTrainer(model=model, reward_funcs=digits, args=args, train_dataset=dataset())
    assert new.train().global_step == 2
    assert (folder / "previous-1" / "checkpoint-2").is_dir()
    assert {run.run_id for run in runs.list_runs(store)} == {"train-1", "train-2"}
    store.close()
