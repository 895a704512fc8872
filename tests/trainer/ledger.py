"""A run whose samples were made by hand: no server, no worker process."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import AutoTokenizer

from agrpo.records import GroupCommit, Rollout, ScoredRollout, TurnRecord
from agrpo.sequences import build_sequences
from agrpo.store import Attempt, Store, groups, policies, workers
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.policy_model import digest_of, load_policy, named_weights
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.store_trainer import StoreTrainer
from agrpo.trainer.work import RunWork
from tests.worlds import small_groups

VOCAB = 90


class NoServers:
    """A PolicySync that only counts versions."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.calls: list[tuple[str, int]] = []

    def prepare(self) -> None:
        pass

    def settle(self, step: int, digest: str) -> None:
        self.calls.append(("settle", step))
        known = policies.policies(self._attempt.store, self._attempt.run_id)
        if not known or known[-1].digest != digest:
            self._publish(step, digest)

    def after_step(self, step: int, digest: str) -> None:
        self.calls.append(("after_step", step))
        self._publish(step, digest)

    def keep_current(self) -> None:
        pass

    def _publish(self, step: int, digest: str) -> None:
        version = policies.current_version(self._attempt.store, self._attempt.run_id) + 1
        policies.publish(self._attempt, version, step, digest)


def open_store(folder: Path) -> Store:
    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    store.migrate()
    return store


def scored_rollout(rng: np.random.Generator, prompt: list[int], reward: float, advantage: float) -> ScoredRollout:
    """A rollout of random tokens, each with three top tokens, as if a sampler had drawn it."""
    output = rng.integers(4, VOCAB, size=int(rng.integers(2, 9))).tolist()
    log_probs = (-rng.uniform(2.0, 6.0, size=len(output))).tolist()
    tops = []
    for token, log_prob in zip(output, log_probs, strict=True):
        others = [int(other) for other in rng.choice(VOCAB, size=3, replace=False) if other != token][:2]
        tops.append({token: log_prob, **{other: math.log(0.05) for other in others}})
    turn = TurnRecord(prompt, output, log_probs, output_sampler_logprobs=tops, finish_reason="stop")
    rollout = Rollout([{"role": "assistant", "content": "x"}], output, [turn])
    return ScoredRollout(rollout, build_sequences([turn]), {"exact": reward}, reward, advantage, True)


def fill(attempt: Attempt, num_groups: int, seed: int = 0, group_size: int = 4, data_ended: bool = True) -> int:
    """Commit groups of version 0 and say that no more will come; the worker's process id."""
    rng = np.random.default_rng(seed)
    worker = small_groups.start_worker(attempt)
    for claim in groups.claim(attempt, worker, num_groups):
        prompt = rng.integers(4, VOCAB, size=int(rng.integers(3, 7))).tolist()
        rollouts = [scored_rollout(rng, prompt, float(i % 2), 1.0 if i % 2 else -1.0) for i in range(group_size)]
        commit = GroupCommit(
            group_id=claim.group_id,
            prompt_index=claim.prompt_index,
            row_index=claim.prompt_index,
            epoch=0,
            model_version=0,
            prompt=[{"role": "user", "content": "p"}],
            prompt_ids=prompt,
            rollouts=rollouts,
            stats={"reward": 0.5, "reward_group_std": 0.5, "frac_reward_zero_std": 0.0, "completions/mean_length": 5.0},
        )
        groups.commit(attempt, commit)
    if data_ended:
        say(attempt, worker)
    return worker


def say(
    attempt: Attempt,
    worker: int,
    in_flight: int = 0,
    admission_open: bool = False,
    data_ended: bool = True,
    allowance_step_seen: int = 0,
) -> None:
    """What the worker says of itself."""
    workers.state(attempt, worker, in_flight, admission_open, data_ended, allowance_step_seen)


def weights_digest(model: nn.Module) -> str:
    """Hash of what is trained: the same weights, the same digest."""
    return digest_of(named_weights(model))


def config(folder: Path, **settings: object) -> AsyncGRPOConfig:
    """Two groups a step, plain settings for a CPU."""
    defaults = {
        "output_dir": str(folder / "checkpoints"),
        "use_cpu": True,
        "learning_rate": 1e-2,
        "groups_per_step": 2,
        "max_staleness": 100,
        "save_steps": 100,
        "disable_tqdm": True,
        "report_to": "none",
    }
    return AsyncGRPOConfig(**{**defaults, **settings})


def trainer_for(
    attempt: Attempt,
    model_path: Path,
    args: AsyncGRPOConfig,
    token_budget: int = 64,
    with_tokenizer: bool = True,
    optimizers: Callable[[nn.Module], tuple[Any, Any]] = lambda model: (None, None),
):
    """A trainer and its work, ready for train_in."""
    model = load_policy(str(model_path), args)
    tokenizer = AutoTokenizer.from_pretrained(model_path) if with_tokenizer else None
    trainer = StoreTrainer(model, args, tokenizer, optimizers=optimizers(model))
    sync = NoServers(attempt)
    work = RunWork(
        attempt=attempt,
        weights=PolicyWeights(model),
        args=args,
        token_budget=token_budget,
        checkpoint_root=Path(args.output_dir),
        sync=sync,
        stop=trainer.stop,
        measures=trainer.measures,
        attention_backend=trainer.attention_backend,
    )
    return trainer, work, sync
