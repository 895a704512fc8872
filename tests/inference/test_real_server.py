"""The client against real vLLM."""

import asyncio
import dataclasses
import math

import pytest

from agrpo.errors import RequestRefused
from agrpo.inference.capabilities import Capabilities, LoadReading, check_trainable
from agrpo.inference.client import SamplingParams, ServerClient, is_healthy
from agrpo.inference.http import run_blocking
from agrpo.records import TurnRecord
from tests.worlds.vllm_server import VllmServer

PROMPT = [2, 34, 32, 18, 31, 81, 6]
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, num_logprobs=3)


class CompletionsClient(ServerClient):
    """A client of the same server as if its token endpoint were closed."""

    async def capabilities(self) -> Capabilities:
        return dataclasses.replace(await super().capabilities(), token_endpoint=False)


def generate(client: ServerClient, *params: SamplingParams) -> list[TurnRecord]:
    async def ask() -> list[TurnRecord]:
        async with client:
            return await asyncio.gather(*(client.generate(PROMPT, one) for one in params))

    return run_blocking(ask())


def test_a_server_that_we_start_can_do_everything(vllm_server: VllmServer) -> None:
    async def ask() -> tuple[Capabilities, LoadReading, bool]:
        async with ServerClient(vllm_server.url) as client:
            return await client.capabilities(), await client.metrics(), await client.health()

    able, reading, healthy = run_blocking(ask())
    assert healthy and is_healthy(vllm_server.url)
    assert able == Capabilities(
        model=str(vllm_server.model_path),
        max_model_len=256,
        token_endpoint=True,
        sampling_masks=False,
        request_seeds=False,
        weight_backend="agrpo_file",
        max_logprobs=32,
        logprobs_mode="processed_logprobs",
        dtype="float32",
        device="cpu",
        world_size=1,
    )
    check_trainable(vllm_server.url, able, ["agrpo_file"])
    assert reading.kv_cache_tokens is not None and reading.kv_cache_tokens > 256


def test_both_endpoints_give_the_same_turn(vllm_server: VllmServer) -> None:
    (token,) = generate(ServerClient(vllm_server.url), GREEDY)
    (plain,) = generate(CompletionsClient(vllm_server.url), GREEDY)
    assert token.output_ids == plain.output_ids and token.finish_reason == plain.finish_reason == "length"
    assert token.output_log_probs == pytest.approx(plain.output_log_probs, abs=1e-5)
    assert token.weight_versions and not plain.weight_versions


@pytest.mark.parametrize("client", [ServerClient, CompletionsClient])
def test_the_top_log_probs_are_the_most_likely_whatever_was_sampled(
    vllm_server: VllmServer, client: type[ServerClient]
) -> None:
    turns = generate(client(vllm_server.url), *[SamplingParams(max_tokens=20, num_logprobs=3)] * 4)
    outside = 0
    for turn in turns:
        assert turn.output_sampler_logprobs is not None
        for token, log_prob, top in zip(
            turn.output_ids, turn.output_log_probs, turn.output_sampler_logprobs, strict=True
        ):
            assert len(top) == 3 and (token in top) == (log_prob >= min(top.values()))
            outside += token not in top
    assert outside > 0


def test_log_probs_under_top_k_are_those_of_the_restricted_distribution(vllm_server: VllmServer) -> None:
    (turn,) = generate(ServerClient(vllm_server.url), SamplingParams(max_tokens=30, top_k=3, num_logprobs=5))
    assert turn.output_sampler_logprobs is not None and turn.output_sampling_mask is None
    for token, top in zip(turn.output_ids, turn.output_sampler_logprobs, strict=True):
        assert len(top) == 3 and token in top
        assert sum(math.exp(value) for value in top.values()) == pytest.approx(1, abs=1e-5)


def test_a_seed_does_not_reach_a_cpu_server(vllm_server: VllmServer) -> None:
    generate(ServerClient(vllm_server.url), *[SamplingParams(max_tokens=4, seed=i) for i in range(8)])
    assert is_healthy(vllm_server.url)


def test_a_prompt_that_is_too_long_is_refused(vllm_server: VllmServer) -> None:
    async def ask() -> None:
        async with ServerClient(vllm_server.url) as client:
            await client.generate(PROMPT * 40, GREEDY)

    with pytest.raises(RequestRefused, match="longer than the maximum model length of 256"):
        run_blocking(ask())


def test_end_tokens_end_a_turn(vllm_server: VllmServer) -> None:
    (free,) = generate(ServerClient(vllm_server.url), GREEDY)
    end = free.output_ids[2]
    stopped = dataclasses.replace(GREEDY, stop_token_ids=(end,))
    (turn,) = generate(ServerClient(vllm_server.url), stopped)
    assert turn.output_ids == free.output_ids[: free.output_ids.index(end) + 1] and turn.finish_reason == "stop"
