"""A run file's children: which command, with which environment, restarted how often."""

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from agrpo.inference.command import LOOPBACK, ServerCommand, free_port, server_command
from agrpo.launch.child import ChildSpec
from agrpo.runfile import RunFile
from agrpo.session.placement import Placement
from agrpo.store import Attempt
from agrpo.store.processes import Kind

SHARED_MEMORY = Path("/dev/shm")
STANDBY_AFTER_S = 20.0
"""A worker has loaded by then, and the cores are free again."""

VLLM_MAX_LOGPROBS = 20
"""What a server offers unless it is told otherwise."""


def server(run: RunFile, index: int, placement: Placement) -> ChildSpec:
    """A vLLM server on a port that is free now; another attempt may adopt it while its settings are the same."""
    port = free_port()
    settings = _server_settings(run, index, placement, port)
    command, env = server_command(settings)
    same = dataclasses.replace(settings, port=0)
    return dataclasses.replace(
        _spec(run, "server", index, tuple(command), env),
        orphan_grace_s=run.servers.orphan_grace_s,
        settings_hash=hashlib.sha256(repr(same).encode()).hexdigest(),
        url=f"http://{LOOPBACK}:{port}",
    )


def worker(run: RunFile, attempt: Attempt, index: int) -> ChildSpec:
    """A rollout worker; it never sees a GPU."""
    command = (sys.executable, "-m", "agrpo.rollout.worker", *_identity(attempt))
    # Its work is waiting: threads of a math library would only take cores from servers and trainer.
    spec = _spec(run, "worker", index, command, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    return dataclasses.replace(
        spec,
        standby_after_s=STANDBY_AFTER_S if run.limits.standby else None,
        silence_limit_s=run.trainer.rollout_worker_timeout,
    )


def evaluator(run: RunFile, attempt: Attempt) -> ChildSpec:
    """The process that evaluates while training goes on."""
    command = (sys.executable, "-m", "agrpo.evaluation.during", *_identity(attempt))
    spec = _spec(run, "evaluator", 0, command, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    return dataclasses.replace(spec, optional=True, silence_limit_s=run.trainer.rollout_worker_timeout)


def trainer(run: RunFile, attempt: Attempt, placement: Placement) -> ChildSpec:
    """The trainer: one process, torchrun with gloo for several ranks on CPUs, accelerate for several GPUs."""
    command = trainer_command(run, placement, "agrpo.trainer.main", *_identity(attempt))
    spec = _spec(run, "trainer", 0, command, trainer_env(placement, run.trainer.threads))
    # It speaks at every row; between two of them may lie a weight update, or a checkpoint. As long as other ranks wait.
    return dataclasses.replace(spec, silence_limit_s=2 * run.trainer.vllm_server_timeout)


def trainer_command(run: RunFile, placement: Placement, module: str, *arguments: str) -> tuple[str, ...]:
    """A module with all the ranks of the run's trainer."""
    ranks = ("--nproc-per-node", str(run.trainer.ranks))
    launch: tuple[str, ...] = (sys.executable,)
    if run.trainer.ranks > 1 and placement.on_gpu:
        count = ("--multi_gpu", "--num_machines", "1", "--num_processes", str(run.trainer.ranks))
        launch = (sys.executable, "-m", "accelerate.commands.launch", *count)
    elif run.trainer.ranks > 1:
        # torchrun would take the module's own options for beginnings of its own.
        launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", *ranks, "-m", "--")
        return (*launch, module, *arguments)
    return (*launch, "-m", module, *arguments)


def trainer_env(placement: Placement, threads: int | None) -> dict[str, str]:
    """GPUs and CPU threads of each rank."""
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, placement.trainer))}
    return env if threads is None else env | {"OMP_NUM_THREADS": str(threads)}


def _server_settings(run: RunFile, index: int, placement: Placement, port: int) -> ServerCommand:
    chosen, sampling = run.servers, run.trainer
    gpus = tuple(placement.servers[index])
    restricted = sampling.top_k > 0 or sampling.top_p < 1 or bool(sampling.min_p)
    return ServerCommand(
        model=run.model.path,
        port=port,
        device="cuda" if gpus else "cpu",
        gpus=gpus,
        dtype=chosen.dtype,
        max_model_len=chosen.max_model_len,
        max_logprobs=max(VLLM_MAX_LOGPROBS, sampling.num_sampler_logprobs + 1),
        revision=(sampling.model_init_kwargs or {}).get("revision"),
        trust_remote_code=sampling.trust_remote_code,
        weights_folders=(run.run_dir, SHARED_MEMORY),
        sampling_masks=bool(gpus) and restricted,
        seed=sampling.seed + index,
        threads=chosen.threads,
        kv_cache_gb=chosen.kv_cache_gb,
        gpu_memory_frac=chosen.gpu_memory_frac,
        python=chosen.python,
        args=tuple(chosen.args),
    )


def _identity(attempt: Attempt) -> tuple[str, ...]:
    known = ("--store", attempt.store.url, "--run", attempt.run_id, "--token", str(attempt.token))
    return (*known, "--process-id", "{process_id}")


def _spec(run: RunFile, kind: Kind, index: int, command: tuple[str, ...], env: Mapping[str, str]) -> ChildSpec:
    return ChildSpec(
        kind=kind,
        index=index,
        command=command,
        log_path=Path("logs") / f"{kind}-{index}.log",
        # Written as it comes: the end of a killed child's log is what tells why.
        # Servers and trainer share cores: a thread that spins while it waits would take them from the other.
        env={"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE", **env},
        restart_limit=run.limits.restarts,
        steady_after_s=run.limits.steady_after_s,
        backoff_s=run.limits.backoff_s,
    )
