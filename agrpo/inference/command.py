"""The command and environment that start a vLLM server which training can drive."""

import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from agrpo.inference.capabilities import FILE_BACKEND, NCCL_BACKEND

LOOPBACK = "127.0.0.1"
NUM_API_SERVERS = 8
"""Processes of a server on GPUs that turn answers into JSON."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """One server to start."""

    model: str
    """Folder or name of the checkpoint; also the name that requests use."""
    port: int
    host: str = LOOPBACK
    device: str = "cpu"
    """"cpu" or "cuda"."""
    gpus: tuple[int, ...] = ()
    """GPUs of this server; more than one splits every layer over them. Empty leaves CUDA_VISIBLE_DEVICES alone."""
    revision: str | None = None
    """Branch, tag or commit of a model on the Hub."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""
    dtype: str = "float32"
    max_model_len: int | None = None
    """Longest prompt plus completion in tokens; None is the model's own limit."""
    max_logprobs: int = 20
    weight_backend: str | None = None
    """None: NCCL on GPU, files on CPU."""
    weights_folders: tuple[Path, ...] = ()
    """Folders from which the file backend may read weights."""
    sampling_masks: bool = False
    """Report the candidate set of every token; GPU only."""
    seed: int = 0
    """Of the server's own sampling: give every server another one, or equal prompts get equal completions."""
    threads: int | None = None
    """CPU threads; None takes all that this process may use."""
    kv_cache_gb: int = 1
    """Size of the KV cache on the CPU."""
    gpu_memory_frac: float = 0.9
    python: str | None = None
    """Interpreter whose environment holds vLLM; None is this one."""
    args: tuple[str, ...] = ()
    """Further arguments, after ours and so winning over them."""


def server_command(settings: ServerCommand) -> tuple[list[str], dict[str, str]]:
    """Arguments of the process, and the variables to add to its environment."""
    on_gpu = settings.device != "cpu"
    backend = settings.weight_backend or (NCCL_BACKEND if on_gpu else FILE_BACKEND)
    options = {
        "--model": settings.model,
        "--host": settings.host,
        "--port": settings.port,
        "--dtype": settings.dtype,
        "--seed": settings.seed,
        "--logprobs-mode": "processed_logprobs",
        "--max-logprobs": settings.max_logprobs,
        "--weight-transfer-config": json.dumps({"backend": backend}),
    }
    if settings.max_model_len is not None:
        options["--max-model-len"] = settings.max_model_len
    if settings.revision is not None:
        options["--revision"] = settings.revision
    if on_gpu:
        options["--api-server-count"] = NUM_API_SERVERS
        options["--gpu-memory-utilization"] = settings.gpu_memory_frac
    if len(settings.gpus) > 1:
        options["--tensor-parallel-size"] = len(settings.gpus)
    switches = ["--enable-scale-out", "--disable-uvicorn-access-log"]
    if settings.trust_remote_code:
        switches.append("--trust-remote-code")
    if settings.sampling_masks:
        switches.append("--return-sampling-mask")
    if not on_gpu:
        switches.append("--enforce-eager")  # compiling takes two minutes there
    # The `vllm` script looks for a distribution of that name, which the CPU build does not have.
    python = settings.python or sys.executable
    argv = [python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += [str(part) for pair in options.items() for part in pair]
    return [*argv, *switches, *settings.args], _environment(settings, on_gpu)


def _environment(settings: ServerCommand, on_gpu: bool) -> dict[str, str]:
    env = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "AGRPO_WEIGHTS_DIR": os.pathsep.join(str(folder.resolve()) for folder in settings.weights_folders),
    }
    if Path(settings.model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if settings.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, settings.gpus))
    if settings.sampling_masks:
        env["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if not on_gpu:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_cache_gb)
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if settings.threads is not None:
            env["OMP_NUM_THREADS"] = str(settings.threads)
    return env


def free_port(host: str = LOOPBACK) -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
