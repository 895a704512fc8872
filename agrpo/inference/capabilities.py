"""What a vLLM server can do, found out once, and the command that starts one that can do everything."""

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agrpo.errors import BadInput, MalformedAnswer

Json = dict[str, Any]

FILE_BACKEND = "agrpo_file"
NCCL_BACKEND = "nccl"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One server's abilities; what an older or closed server does not tell is None, or False for a switch."""

    model: str
    """Name under which requests ask for the base model."""
    max_model_len: int
    """Longest prompt plus completion, in tokens."""
    token_endpoint: bool
    """`/inference/v1/generate` is open (`--enable-scale-out`)."""
    sampling_masks: bool
    """Candidate sets come with every token (`--return-sampling-mask`), through the token endpoint."""
    request_seeds: bool
    """A request may carry a seed: never on a CPU build, whose engine dies of one."""
    weight_backend: str | None
    """Backend of `--weight-transfer-config`."""
    max_logprobs: int | None
    logprobs_mode: str | None
    dtype: str | None
    """Such as "float32"."""
    device: str | None
    """Such as "cpu" or "cuda"."""
    world_size: int
    """Processes that hold weights."""


@dataclass(frozen=True, slots=True)
class LoadReading:
    """One look at a server's `/metrics`."""

    kv_cache_usage_frac: float
    """The fullest engine's, 0 to 1."""
    num_running: float
    num_waiting: float
    num_preemptions: float
    """Since the server started."""
    kv_cache_tokens: int | None
    """Tokens that the KV caches of all engines hold; None when the server does not say."""


def read_capabilities(models: Json, server_info: Json | None, token_endpoint: bool) -> Capabilities:
    """Put together the answers of `/v1/models` and `/server_info` (None where it is closed)."""
    try:
        base = next(entry for entry in models["data"] if not entry.get("parent"))
        config = (server_info or {}).get("vllm_config") or {}
        model = config.get("model_config") or {}
        device = (config.get("device_config") or {}).get("device")
        return Capabilities(
            model=base["id"],
            max_model_len=int(base["max_model_len"]),
            token_endpoint=token_endpoint,
            sampling_masks=token_endpoint and bool(model.get("return_sampling_mask")),
            request_seeds=device is not None and not str(device).startswith("cpu"),
            weight_backend=(config.get("weight_transfer_config") or {}).get("backend"),
            max_logprobs=model.get("max_logprobs"),
            logprobs_mode=model.get("logprobs_mode"),
            dtype=str(model["dtype"]).removeprefix("torch.") if "dtype" in model else None,
            device=device,
            world_size=int((config.get("parallel_config") or {}).get("world_size") or 1),
        )
    except (KeyError, TypeError, ValueError, StopIteration, AttributeError) as error:
        raise MalformedAnswer(f"/v1/models or /server_info lacks or garbles {error!r}") from error


def check_trainable(url: str, capabilities: Capabilities, drivable: Sequence[str]) -> str:
    """The server's weight-transfer backend, one of `drivable`, of which the first is recommended to others.

    Refuses a server whose weights cannot be updated, or whose log-probabilities are not those of its samples.

    Raises:
        BadInput: one line with the command to start the server with.
    """
    command = start_command(capabilities.model, drivable[0])
    if capabilities.weight_backend is None or capabilities.weight_backend not in drivable:
        raise BadInput(
            f"server {url} has weight-transfer backend {capabilities.weight_backend!r}, but this run can drive "
            f"{', '.join(sorted(drivable))}; start it with: {command}"
        )
    if capabilities.logprobs_mode != "processed_logprobs":
        raise BadInput(
            f"server {url} has --logprobs-mode {capabilities.logprobs_mode}, but training needs the log-probabilities "
            f"of what was sampled (processed_logprobs); start it with: {command}"
        )
    return capabilities.weight_backend


def start_command(model: str, backend: str) -> str:
    """A shell line that starts a server with all that training needs; only the paths are left to adapt."""
    variables = "VLLM_SERVER_DEV_MODE=1"
    if backend == FILE_BACKEND:
        variables += " AGRPO_WEIGHTS_DIR=/dev/shm"
    return (
        f"{variables} python -m vllm.entrypoints.openai.api_server --model {shlex.quote(model)} "
        f'--weight-transfer-config \'{{"backend": "{backend}"}}\' '
        "--logprobs-mode processed_logprobs --enable-scale-out"
    )


def read_metrics(text: str) -> LoadReading:
    """The few numbers of a Prometheus page that admission needs.

    Raises:
        MalformedAnswer: the page lacks vLLM's KV cache usage.
    """
    samples: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for name, labels, value in re.findall(r"^(vllm:\w+)(?:\{(.*)\})? (\S+)", text, re.MULTILINE):
        samples[name].append((labels, float(value)))
    usage = [value for _, value in samples["vllm:kv_cache_usage_perc"] if not math.isnan(value)]
    if not usage:
        raise MalformedAnswer("/metrics has no vllm:kv_cache_usage_perc")
    sizes = [re.search(r'kv_cache_size_tokens="(\d+)"', labels) for labels, _ in samples["vllm:cache_config_info"]]
    known = [int(size[1]) for size in sizes if size]
    return LoadReading(
        kv_cache_usage_frac=max(usage),
        num_running=sum(value for _, value in samples["vllm:num_requests_running"]),
        num_waiting=sum(value for _, value in samples["vllm:num_requests_waiting"]),
        num_preemptions=sum(value for _, value in samples["vllm:num_preemptions_total"]),
        kv_cache_tokens=sum(known) if known else None,
    )
