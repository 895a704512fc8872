"""The settings: documented defaults, and every refusal names what to do."""

import pytest

from agrpo.trainer.async_grpo_config import AsyncGRPOConfig

DOCUMENTED = {
    "logging_steps": 1,
    "gradient_checkpointing": True,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "ignore_data_skip": True,
    "remove_unused_columns": False,
    "model_init_kwargs": None,
    "dtype": "float32",
    "trust_remote_code": False,
    "router_aux_loss_coef": None,
    "num_generations": 8,
    "max_completion_length": 2048,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "chat_template_kwargs": None,
    "max_tool_calling_iterations": None,
    "vllm_server_base_url": "http://localhost:8000",
    "vllm_server_timeout": 1800.0,
    "epsilon": 0.2,
    "epsilon_high": None,
    "score_centering": True,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_clip_max": 5.0,
    "num_sampler_logprobs": 8,
    "token_budget": None,
    "max_concurrent_rollouts": 512,
    "max_staleness": 4,
    "weight_sync_steps": 1,
    "rollout_worker_timeout": 300.0,
    "log_completions": False,
    "num_completions_to_print": None,
}


def config(**settings):
    return AsyncGRPOConfig(output_dir="unused", **{"use_cpu": True, **settings})


def test_every_documented_default_holds():
    args = config()
    assert {name: vars(args)[name] for name in DOCUMENTED} == DOCUMENTED


def test_bf16_is_off_on_a_cpu_and_can_be_asked_for():
    assert config().bf16 is False
    assert config(bf16=True).bf16 is True
    assert config(fp16=False, bf16=False).bf16 is False


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"num_generations": 1}, "num_generations=1"),
        ({"lr_scheduler_type": "linear"}, "max_steps"),
        ({"warmup_steps": 0.1, "lr_scheduler_type": "constant_with_warmup"}, "max_steps"),
        ({"per_device_train_batch_size": 4}, "groups_per_step"),
        ({"deepspeed": "zero2.json"}, "FSDP2"),
        ({"fsdp": True, "fsdp_config": {"version": 1}}, "FSDP2"),
        ({"fsdp": True, "fsdp_config": {"fsdp_version": 1}}, "FSDP2"),
        ({"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}, "from_pretrained"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"remove_unused_columns": True}, "remove_unused_columns"),
        ({"auto_find_batch_size": True}, "token_budget"),
        ({"top_p": 0.9}, "top_k"),
        ({"min_p": 0.1}, "top_k"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_k": 5, "min_p": 1.5}, "min_p=1.5"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"token_budget": 0}, "token_budget=0"),
        ({"max_staleness": -1}, "max_staleness=-1"),
        ({"vllm_importance_sampling_clip_min": 6.0}, "clip_max=5.0"),
        ({"reward_timeout_s": 0.0}, "reward_timeout_s=0.0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(settings, word):
    with pytest.raises(ValueError, match=word) as refusal:
        config(**settings)
    assert "\n" not in str(refusal.value)


def test_a_decaying_schedule_is_fine_with_max_steps():
    assert config(lr_scheduler_type="linear", max_steps=10).max_steps == 10


def test_sharding_is_read_from_a_file_too(tmp_path):
    (tmp_path / "fsdp.json").write_text('{"fsdp_version": 1}')
    with pytest.raises(ValueError, match="FSDP2"):
        config(fsdp=True, fsdp_config=str(tmp_path / "fsdp.json"))
    assert config(fsdp=True).fsdp_plugin_args["fsdp_version"] == 2


def test_the_revision_is_found_however_it_is_written():
    written = [None, {"revision": "v2"}, '{"revision": "v2"}', {"dtype": "float32"}]
    assert [config(model_init_kwargs=one).model_revision for one in written] == [None, "v2", "v2", None]
