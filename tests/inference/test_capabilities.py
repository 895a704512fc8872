"""What a server says about itself."""

import pytest

from agrpo.errors import BadInput, MalformedAnswer
from agrpo.inference.capabilities import check_trainable, read_capabilities, read_metrics, start_command

MODELS = {"data": [{"id": "adapter", "parent": "base"}, {"id": "base", "max_model_len": 4096, "parent": None}]}


def info(backend: str | None = "nccl", device: str = "cuda", **model: object) -> dict[str, object]:
    model_config = {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs", "max_logprobs": 20, **model}
    transfer = None if backend is None else {"backend": backend}
    config = {
        "model_config": model_config,
        "weight_transfer_config": transfer,
        "device_config": {"device": device},
        "parallel_config": {"world_size": 2},
    }
    return {"vllm_config": config}


def test_everything_that_a_developer_server_tells() -> None:
    able = read_capabilities(MODELS, info(return_sampling_mask=True), token_endpoint=True)
    assert (able.model, able.max_model_len, able.dtype, able.world_size) == ("base", 4096, "bfloat16", 2)
    assert able.sampling_masks and able.request_seeds and able.weight_backend == "nccl"
    assert able.max_logprobs == 20


def test_a_closed_server_can_do_nothing_that_it_does_not_tell() -> None:
    able = read_capabilities(MODELS, None, token_endpoint=False)
    assert able.max_model_len == 4096
    assert not (able.sampling_masks or able.request_seeds or able.weight_backend or able.dtype)


def test_a_cpu_server_takes_no_seeds_and_masks_need_the_token_endpoint() -> None:
    able = read_capabilities(MODELS, info(device="cpu", return_sampling_mask=True), token_endpoint=False)
    assert not able.request_seeds and not able.sampling_masks


@pytest.mark.parametrize("models", [{}, {"data": []}, {"data": [{"id": "base"}]}, {"data": None}])
def test_an_answer_without_a_model_is_refused(models: dict[str, object]) -> None:
    with pytest.raises(MalformedAnswer):
        read_capabilities(models, None, token_endpoint=True)


@pytest.mark.parametrize("backend", [None, "ipc"])
def test_a_server_whose_weights_we_cannot_update_is_refused_with_the_command(backend: str | None) -> None:
    able = read_capabilities(MODELS, info(backend), token_endpoint=True)
    with pytest.raises(BadInput) as refused:
        check_trainable("http://host:8000", able, ["agrpo_file"])
    message = str(refused.value)
    assert "\n" not in message and "http://host:8000" in message
    assert start_command("base", "agrpo_file") in message


def test_raw_log_probs_are_refused() -> None:
    able = read_capabilities(MODELS, info(logprobs_mode="raw_logprobs"), token_endpoint=True)
    with pytest.raises(BadInput, match="processed_logprobs"):
        check_trainable("http://host:8000", able, ["nccl"])


def test_a_fitting_server_passes() -> None:
    able = read_capabilities(MODELS, info(), token_endpoint=True)
    assert check_trainable("http://host:8000", able, ["agrpo_file", "nccl"]) == "nccl"


METRICS = """# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",kv_cache_size_tokens="1000"} 1.0
"""


def test_metrics_are_summed_over_engines_and_usage_is_the_fullest_one() -> None:
    reading = read_metrics(METRICS)
    assert (reading.num_running, reading.num_waiting, reading.num_preemptions) == (5.0, 1.0, 4.0)
    assert reading.kv_cache_usage_frac == 0.75 and reading.kv_cache_tokens == 2000


def test_a_page_of_something_else_is_refused() -> None:
    with pytest.raises(MalformedAnswer):
        read_metrics("process_cpu_seconds_total 1.0")
