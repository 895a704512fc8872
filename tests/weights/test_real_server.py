"""Publishing to real vLLM: what it serves is what was sent, and nothing else is accepted (faults 7, 9, 18, 19)."""

import asyncio
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from agrpo.errors import ProbeFailed, WeightSyncError
from agrpo.inference.client import SamplingParams, ServerClient
from agrpo.inference.http import HttpServer, run_blocking
from agrpo.records import TurnRecord
from agrpo.weights.phases import Phases, update_server
from agrpo.weights.probe import check_probe
from agrpo.weights.publisher import Publisher
from tests.worlds.scripted_vllm import served_version
from tests.worlds.vllm_server import VllmServer

PROBE = [2, 34, 32, 18, 31, 81, 6, 98, 76, 98, 7, 98, 84]
TIMEOUT_S = 60.0
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def model(vllm_server: VllmServer) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(vllm_server.model_path, dtype=torch.float32)
    return loaded


@pytest.fixture
def publisher(vllm_server: VllmServer, model: PreTrainedModel) -> Iterator[Publisher]:
    """A publisher; before and afterwards the server serves the checkpoint, whoever used it last."""
    checkpoint = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    made = Publisher(vllm_server.weights_dir, TIMEOUT_S)
    assert made.publish(checkpoint.items(), 0, [vllm_server.url]).confirmed == [vllm_server.url]
    yield made
    assert made.publish(checkpoint.items(), 0, [vllm_server.url]).confirmed == [vllm_server.url]


@torch.no_grad()
def change(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.add_(0.05 * torch.randn(weight.shape, generator=generator))


@torch.no_grad()
def expected(model: PreTrainedModel, token_ids: list[int]) -> list[float]:
    log_probs = torch.log_softmax(model(torch.tensor([token_ids])).logits[0].double(), -1)
    return [float("nan"), *(log_probs[i, token].item() for i, token in enumerate(token_ids[1:]))]


def disagreement(server: VllmServer, model: PreTrainedModel, token_ids: list[int] = PROBE) -> float:
    return check_probe(server.url, token_ids, expected(model, token_ids), 1e9, TIMEOUT_S)


def generate(server: VllmServer, prompts: list[list[int]], params: SamplingParams) -> list[TurnRecord]:
    async def ask() -> list[TurnRecord]:
        async with ServerClient(server.url, TIMEOUT_S) as client:
            return await asyncio.gather(*(client.generate(prompt, params) for prompt in prompts))

    return run_blocking(ask())


def test_two_publishes_and_a_failed_one_between(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher
) -> None:
    assert disagreement(vllm_server, model) < 1e-4
    change(model, 1)
    assert disagreement(vllm_server, model) > 0.1
    assert publisher.publish(model.named_parameters(), 1, [vllm_server.url]).failed == {}
    assert disagreement(vllm_server, model) < 1e-4
    assert served_version(vllm_server.url) == "1"

    wrong = dict(model.named_parameters()) | {"model.unheard.weight": torch.zeros(2)}
    error = publisher.publish(wrong.items(), 2, [vllm_server.url]).failed[vllm_server.url]
    assert error.phase == "update" and "model.unheard.weight" in str(error)
    assert served_version(vllm_server.url) == "unknown"
    assert generate(vllm_server, [PROBE], SamplingParams(max_tokens=2))[0].weight_versions == [("unknown", 0, 2)]

    change(model, 2)
    assert publisher.publish(model.named_parameters(), 2, [vllm_server.url]).failed == {}
    assert disagreement(vllm_server, model) < 1e-4
    assert served_version(vllm_server.url) == "2"


def test_the_probe_catches_weights_that_were_not_delivered(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher
) -> None:
    change(model, 3)
    with pytest.raises(ProbeFailed, match=re.escape(vllm_server.url)):
        check_probe(vllm_server.url, PROBE, expected(model, PROBE), 1e-2, TIMEOUT_S)


def test_sampled_tokens_carry_the_log_probs_of_the_published_weights(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher
) -> None:
    change(model, 4)
    publisher.publish(model.named_parameters(), 5, [vllm_server.url])
    (turn,) = generate(vllm_server, [PROBE], SamplingParams(max_tokens=20, num_logprobs=4, temperature=1.0))
    assert turn.weight_versions == [("5", 0, len(turn.output_ids))]
    tokens = PROBE + turn.output_ids
    assert turn.output_log_probs == pytest.approx(expected(model, tokens)[len(PROBE) :], abs=1e-4)
    with torch.no_grad():
        all_log_probs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)[len(PROBE) - 1 : -1]
    assert turn.output_sampler_logprobs is not None
    for reported, exact in zip(turn.output_sampler_logprobs, all_log_probs, strict=True):
        top = exact.topk(4)
        assert list(reported) == top.indices.tolist()
        assert list(reported.values()) == pytest.approx(top.values.tolist(), abs=1e-4)


def test_no_request_reuses_a_prefix_cached_under_older_weights(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher
) -> None:
    prompt = [5 + i * 7 % 90 for i in range(200)]
    params = SamplingParams(max_tokens=4)
    generate(vllm_server, [prompt], params)
    before = prefix_hits(vllm_server)
    generate(vllm_server, [prompt], params)
    assert prefix_hits(vllm_server) > before
    change(model, 6)
    publisher.publish(model.named_parameters(), 6, [vllm_server.url])
    before = prefix_hits(vllm_server)
    (turn,) = generate(vllm_server, [prompt], params)
    assert prefix_hits(vllm_server) == before
    exact = expected(model, prompt + turn.output_ids)[len(prompt) :]
    assert turn.output_log_probs == pytest.approx(exact, abs=1e-4)


def prefix_hits(server: VllmServer) -> float:
    async def ask() -> str:
        async with HttpServer(server.url, TIMEOUT_S) as http:
            return await http.text("GET", "/metrics")

    page = run_blocking(ask())
    return sum(float(value) for value in re.findall(r"^vllm:prefix_cache_hits_total\S* (\S+)", page, re.MULTILINE))


def test_requests_in_flight_go_on_under_the_new_weights(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher
) -> None:
    change(model, 7)
    tensors = list(model.named_parameters())
    publisher.publish(tensors, 7, [vllm_server.url])
    params = SamplingParams(max_tokens=230)

    async def overlap() -> list[TurnRecord]:
        async with ServerClient(vllm_server.url, TIMEOUT_S) as client:
            asking = [asyncio.create_task(client.generate([2, 40 + i], params)) for i in range(16)]
            while (await client.metrics()).num_running == 0:
                await asyncio.sleep(0)
            await asyncio.to_thread(publisher.publish, tensors, 8, [vllm_server.url])
            return await asyncio.gather(*asking)

    turns = run_blocking(overlap())
    for turn in turns:
        spans = turn.weight_versions
        assert spans[0][1] == 0 and spans[-1][2] == len(turn.output_ids)
        assert all(end == start for (_, _, end), (_, start, _) in itertools.pairwise(spans))
    assert {version for turn in turns for version, _, _ in turn.weight_versions} == {"7", "8"}


def drop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (put("base_model.model.norm.weight", 64), "cannot take tensor 'base_model.model.norm.weight'"),
        (put("model.layers.0.self_attn.q_proj.bias", 64), "no parameter for tensor 'model.layers.0.self_attn.q_proj.b"),
        (put("lm_head.weight", 100, 64), "tensor 'lm_head.weight' is tied"),
        (put("model.norm.weight", 3), "of shape [3]"),
        (drop("model.norm.weight"), "lacks weights for 1 parameters of the model: ['model.norm.weight']"),
        (drop("model.layers.1.mlp.up_proj.weight"), "['model.layers.1.mlp.gate_up_proj']"),
        (drop("model.embed_tokens.weight"), "['model.embed_tokens.weight']"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    vllm_server: VllmServer,
    model: PreTrainedModel,
    publisher: Publisher,
    damage: Callable[[Tensors], object],
    words: str,
) -> None:
    tensors: Tensors = {name: weight.detach() for name, weight in model.named_parameters()}
    damage(tensors)
    error = publisher.publish(tensors.items(), 9, [vllm_server.url]).failed[vllm_server.url]
    assert error.phase == "update" and words in str(error)


def test_files_elsewhere_and_damaged_files_are_refused_and_change_nothing(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher, tmp_path: Path
) -> None:
    inside = vllm_server.weights_dir / "mine.safetensors"
    outside = tmp_path / "other.safetensors"
    link = vllm_server.weights_dir / "link.safetensors"
    vllm_server.weights_dir.mkdir(exist_ok=True)
    for path in (inside, outside):
        save_file({"model.norm.weight": torch.zeros(64)}, path)
    link.symlink_to(outside)
    digest = hashlib.sha256(inside.read_bytes()).hexdigest()
    inside.write_bytes(inside.read_bytes()[:-1])
    missing = vllm_server.weights_dir / "missing.safetensors"
    for path, words in ((outside, "outside"), (link, "outside"), (inside, "has digest"), (missing, "does not exist")):
        with pytest.raises(WeightSyncError, match=words):
            send(vllm_server, {"path": str(path), "digest": digest})
        assert disagreement(vllm_server, model) < 1e-4
    link.unlink()
    inside.unlink()


def send(server: VllmServer, message: dict[str, str]) -> None:
    async def transfer(phases: Phases) -> None:
        await phases.start()
        await phases.update(message)

    async def update() -> None:
        async with HttpServer(server.url, TIMEOUT_S, keep_alive=False) as http:
            await update_server(Phases(http, 9), transfer)

    run_blocking(update())


def test_an_update_left_open_by_a_killed_trainer_does_not_block_the_next(
    vllm_server: VllmServer, model: PreTrainedModel, publisher: Publisher
) -> None:
    async def open_and_die() -> None:
        async with HttpServer(vllm_server.url, TIMEOUT_S) as http:
            await Phases(http, 1).pause()
            await Phases(http, 1).start()

    run_blocking(open_and_die())
    change(model, 10)
    assert publisher.publish(model.named_parameters(), 10, [vllm_server.url]).failed == {}
    assert disagreement(vllm_server, model) < 1e-4
