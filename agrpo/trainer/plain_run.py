"""A run of a plain script: rank 0 holds the lease, starts the worker and writes down how it ended."""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agrpo.errors import BadInput, ChildFailed, LeaseLost
from agrpo.inference.client import is_healthy
from agrpo.launch.attach import Attached, attach
from agrpo.launch.child import ChildSpec
from agrpo.launch.launcher import Launcher
from agrpo.launch.loops import LoopWatch
from agrpo.launch.spawned import leave_reimported_script
from agrpo.rollout.worker import WorkerSpec, run_worker
from agrpo.store import Attempt, Store, leases, runs, servers
from agrpo.store.leases import Outcome
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.stopping import StopSwitch
from agrpo.trainer_settings import is_endless

RUN_NAME = re.compile(r"train-(\d+)")
LEARNING = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "optim_args", "lr_scheduler_kwargs", "max_grad_norm", "gradient_accumulation_steps", "seed"),
    *("bf16", "fp16", "dtype", "attention_backend", "gradient_checkpointing", "router_aux_loss_coef"),
    *("num_generations", "max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("score_centering", "num_sampler_logprobs", "epsilon", "epsilon_high", "vllm_importance_sampling_clip_min"),
    *("vllm_importance_sampling_clip_max", "groups_per_step", "token_budget", "max_staleness", "weight_sync_steps"),
)
"""Settings that a resumed run must share with its beginning."""


def open_store(output_dir: Path) -> Store:
    """The store of a script: a file beside its checkpoints."""
    store = Store.open(f"sqlite:///{output_dir.absolute()}/agrpo.db")
    store.migrate()
    return store


def attach_script(store: Store, args: AsyncGRPOConfig, model_name: str, resume: bool | str | None) -> Attached:
    """Continue the newest run of the output folder, or begin the next one and set old checkpoints aside.

    Raises BadInput when there is nothing to resume, or it was begun with other settings.
    """
    leave_reimported_script()
    output_dir = Path(args.output_dir or ".")
    numbers = [int(found[1]) for run in runs.list_runs(store) if (found := RUN_NAME.fullmatch(run.run_id))]
    newest = max(numbers, default=0)
    if resume and not newest:
        raise BadInput(f"{output_dir} has no run to resume: call train() without resume_from_checkpoint first")
    if isinstance(resume, str):
        _refuse_foreign(store, f"train-{newest}", resume)
    if not resume and newest:
        leases.refuse_held(store, f"train-{newest}")
    number = newest if resume else newest + 1
    config = _decisive(args, model_name)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    # An earlier version may have noted fewer settings; the others are taken as they are now.
    attached = attach(store, f"train-{number}", config, digest, output_dir, reading=lambda noted: {**config, **noted})
    if number > 1 and attached.attempt is not None:
        _take_the_place(attached.attempt, output_dir, number - 1, bool(resume))
    return attached


class ScriptRun:
    """The processes of a script's run; `watch` raises what ended one of them."""

    def __init__(self, attempt: Attempt, launcher: Launcher, worker_timeout_s: float) -> None:
        self._launcher = launcher
        self._timeout_s = worker_timeout_s
        self._loops = LoopWatch(attempt)
        self._loops.look()
        self._began = time.monotonic()

    def start_worker(self, spec: WorkerSpec, log_path: Path) -> None:
        """Spawn the rollout worker, which never sees a GPU."""
        env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._launcher.start(ChildSpec("worker", 0, partial(run_worker, spec), log_path, env))

    def watch(self) -> None:
        """Raise ChildFailed when the worker is lost: failed for good, or a loop silent for rollout_worker_timeout."""
        self._launcher.raise_if_failed()
        self._loops.look()
        silent = self._loops.silent_s("worker", 0) or {"start": time.monotonic() - self._began}
        for loop, silent_s in silent.items():
            if silent_s > self._timeout_s:
                raise ChildFailed(
                    f"the rollout worker's loop {loop!r} gave no sign of life for "
                    f"rollout_worker_timeout={self._timeout_s:g} s: look into its log under logs/"
                )


@contextmanager
def running(attempt: Attempt, args: AsyncGRPOConfig, stop: StopSwitch) -> Iterator[ScriptRun]:
    """Hold the lease, and when it is over leave no process behind and write down how it went; `stop` ends it early."""
    outcome: Outcome = "failed"
    error: BaseException | None = None
    output_dir = Path(args.output_dir or ".")
    try:
        with Launcher(attempt, output_dir, healthy=is_healthy) as launcher:
            launcher.reap_leftovers()
            servers.forget_given(attempt, besides=args.vllm_server_base_url)
            servers.register(attempt, args.vllm_server_base_url, 0)
            yield ScriptRun(attempt, launcher, args.rollout_worker_timeout)
        outcome = "stopped" if stop.requested else "finished"
    except Exception as caught:
        error = caught
        raise
    except BaseException:
        outcome = "stopped"
        raise
    finally:
        if not isinstance(error, LeaseLost):
            runs.set_status(attempt, outcome, None if error is None else str(error))
            leases.release(attempt, outcome)


def _decisive(args: AsyncGRPOConfig, model_name: str) -> dict[str, Any]:
    # A schedule with an end is stretched by it.
    names = LEARNING if is_endless(vars(args)) else (*LEARNING, "max_steps")
    return {"model": model_name, **{name: _plain(vars(args)[name]) for name in names}}


def _plain(value: Any) -> Any:
    """Enumerations as their words, so that the settings are plain JSON."""
    return value if isinstance(value, bool | int | float | type(None)) else str(getattr(value, "value", value))


def _refuse_foreign(store: Store, run_id: str, path: str) -> None:
    """A path may only name what the run would resume from anyway."""
    run = runs.get_run(store, run_id)
    if run.checkpoint_path is None or Path(path).absolute() != Path(run.checkpoint_path).absolute():
        raise BadInput(
            f"resume_from_checkpoint={path!r}: a run resumes from its last complete checkpoint "
            f"({run.checkpoint_path or 'none yet'}); pass True"
        )


def _take_the_place(attempt: Attempt, output_dir: Path, number: int, resumes: bool) -> None:
    """Set aside what the run before has left, until this one has trained: what lies there from then on is its own."""
    try:
        if runs.get_run(attempt.store, attempt.run_id).step == 0:
            _set_aside(output_dir, number, resumes)
    except BaseException:
        runs.set_status(attempt, "stopped")
        leases.release(attempt, "stopped")
        raise


def _set_aside(output_dir: Path, number: int, resumes: bool) -> None:
    place = output_dir / f"previous-{number}"
    found = sorted([*output_dir.glob("checkpoint-*"), *output_dir.glob("tmp-*")])
    old = [folder for folder in found if not (place / folder.name).exists()]
    if not old:
        return
    place.mkdir(exist_ok=True)
    for folder in old:
        folder.rename(place / folder.name)
    hint = "" if resumes else " (resume_from_checkpoint=True would have continued)"
    print(f"train() begins run train-{number + 1}: {len(old)} older checkpoints are now in {place}{hint}", flush=True)
