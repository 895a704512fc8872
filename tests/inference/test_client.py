"""The client against a scripted server over real sockets (faults 5, 8, 20, 21)."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from agrpo.errors import MalformedAnswer, RequestRefused, ServerOutage
from agrpo.inference.client import SamplingParams, ServerClient, is_healthy
from agrpo.inference.http import run_blocking
from agrpo.records import TurnRecord
from tests.worlds.scripted_vllm import HANG, ScriptedVllm, scripted_vllm

GENERATE = "/inference/v1/generate"
PARAMS = SamplingParams(max_tokens=4, num_logprobs=2)
ONE_TOKEN = {
    "choices": [
        {
            "token_ids": [7],
            "logprobs": {"content": [{"token_id": 7, "logprob": -1.0, "top_logprobs": []}]},
            "sampling_mask": [[7, 8]],
            "finish_reason": "length",
        }
    ]
}
ONE_COMPLETION = {
    "choices": [{"token_ids": [7], "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{}]}, "finish_reason": "x"}]
}


@pytest.fixture
def server() -> Iterator[ScriptedVllm]:
    with scripted_vllm() as scripted:
        yield scripted


def open_endpoint(answer: object, status: int = 200) -> Callable[[Any], tuple[int, object]]:
    """Refuse the empty request that asks whether the endpoint is open, answer the others."""
    return lambda body: (status, answer) if body else (400, {"error": {"message": "token_ids missing"}})


def generate(server: ScriptedVllm, params: SamplingParams = PARAMS, timeout_s: float = 5.0) -> TurnRecord:
    async def ask() -> TurnRecord:
        async with ServerClient(server.url, timeout_s) as client:
            return await client.generate([1, 2], params)

    return run_blocking(ask())


def bodies(server: ScriptedVllm, path: str) -> list[Any]:
    return [body for asked, body in server.asked if asked == path and body]


def test_the_token_endpoint_is_used_when_it_is_open(server: ScriptedVllm) -> None:
    server.script[GENERATE] = open_endpoint(ONE_TOKEN)
    turn = generate(server, SamplingParams(max_tokens=4, temperature=0.7, num_logprobs=2, stop_token_ids=(3,)))
    assert turn.output_ids == [7] and turn.prompt_ids == [1, 2]
    (body,) = bodies(server, GENERATE)
    assert body["token_ids"] == [1, 2] and body["model"] == "tiny"
    assert body["sampling_params"] == {
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [3],
        "logprobs": 3,
        "detokenize": False,
    }


@pytest.mark.parametrize("status", [403, 404])
def test_completions_serve_where_it_is_closed(server: ScriptedVllm, status: int) -> None:
    server.script[GENERATE] = (status, {"error": {"message": "disabled"}})
    server.script["/v1/completions"] = (200, ONE_COMPLETION)
    assert generate(server).output_ids == [7]
    (body,) = bodies(server, "/v1/completions")
    assert body["prompt"] == [1, 2] and body["logprobs"] == 2
    assert body["return_token_ids"] and body["return_tokens_as_token_ids"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_seeds_go_only_to_servers_that_survive_them(server: ScriptedVllm, device: str) -> None:
    server.config["device_config"] = {"device": device}
    server.script[GENERATE] = open_endpoint(ONE_TOKEN)
    generate(server, SamplingParams(max_tokens=4, seed=11))
    assert bodies(server, GENERATE)[0]["sampling_params"].get("seed") == (None if device == "cpu" else 11)


def test_candidates_are_read_when_sampling_is_restricted_and_the_server_gives_them(server: ScriptedVllm) -> None:
    server.script[GENERATE] = open_endpoint(ONE_TOKEN)
    top_k = SamplingParams(max_tokens=4, top_k=2)
    assert generate(server, top_k).output_sampling_mask is None
    server.model_config["return_sampling_mask"] = True
    assert generate(server, top_k).output_sampling_mask == [[7, 8]]
    assert generate(server, SamplingParams(max_tokens=4)).output_sampling_mask is None


def test_no_more_log_probs_are_asked_for_than_the_server_allows(server: ScriptedVllm) -> None:
    server.model_config["max_logprobs"] = 2
    server.script[GENERATE] = open_endpoint(ONE_TOKEN)
    generate(server)
    assert bodies(server, GENERATE)[0]["sampling_params"]["logprobs"] == 2


def test_a_refusal_is_asked_once_and_carries_the_servers_words(server: ScriptedVllm) -> None:
    server.script[GENERATE] = open_endpoint({"error": {"message": "prompt is\ntoo long"}}, 400)
    with pytest.raises(RequestRefused, match="answered 400: prompt is too long"):
        generate(server)
    assert len(bodies(server, GENERATE)) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_error_is_an_outage(server: ScriptedVllm, status: int) -> None:
    server.script[GENERATE] = open_endpoint({"error": {"message": "EngineDeadError"}}, status)
    with pytest.raises(ServerOutage, match=f"answered {status}: EngineDeadError"):
        generate(server)
    assert len(bodies(server, GENERATE)) == 1


def test_a_hanging_server_is_an_outage_within_the_time_limit(server: ScriptedVllm) -> None:
    server.script[GENERATE] = lambda body: HANG if body else (400, {})
    begun = time.monotonic()
    with pytest.raises(ServerOutage, match=r"no answer within 0\.3 s"):
        generate(server, timeout_s=0.3)
    assert time.monotonic() - begun < 3


def test_nobody_listening_is_an_outage() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def ask() -> None:
            async with ServerClient(url, 2.0) as client:
                await client.capabilities()

        with pytest.raises(ServerOutage, match=url):
            run_blocking(ask())
        assert not is_healthy(url, 1.0)


@pytest.mark.parametrize("answer", ["", "<html>", '"text"', "{", "{}"])
def test_garbage_is_malformed(server: ScriptedVllm, answer: str) -> None:
    server.script[GENERATE] = open_endpoint(answer)
    with pytest.raises(MalformedAnswer):
        generate(server)


def test_capabilities_are_asked_once(server: ScriptedVllm) -> None:
    server.script[GENERATE] = open_endpoint(ONE_TOKEN)

    async def twice() -> None:
        async with ServerClient(server.url, 5.0) as client:
            await client.generate([1], PARAMS)
            await client.generate([2], PARAMS)

    run_blocking(twice())
    assert server.paths().count("/server_info") == 1 and len(bodies(server, GENERATE)) == 2


def test_health_version_and_metrics(server: ScriptedVllm) -> None:
    async def ask() -> tuple[bool, str | None]:
        async with ServerClient(server.url, 5.0) as client:
            with pytest.raises(ServerOutage, match="publishes no metrics"):
                await client.metrics()
            return await client.health(), await client.weight_version()

    assert run_blocking(ask()) == (True, "default")
    assert is_healthy(server.url)
    server.script["/health"] = (500, "")
    server.script["/weight_info"] = (404, "")
    server.version = "4"

    async def again() -> tuple[bool, str | None]:
        async with ServerClient(server.url, 5.0) as client:
            return await client.health(), await client.weight_version()

    assert run_blocking(again()) == (False, None)


def test_blocking_calls_work_where_a_loop_already_runs(server: ScriptedVllm) -> None:
    async def notebook() -> bool:
        return is_healthy(server.url)

    healthy: Coroutine[Any, Any, bool] = notebook()
    assert asyncio.run(healthy)
