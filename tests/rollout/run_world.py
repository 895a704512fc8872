"""A run with one scripted server in a real store, and the worker's coroutine driven until something is true."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agrpo.rollout.groups import root_error
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.worker import WorkerSpec, work
from agrpo.store import Attempt, Store, groups, leases, policies, processes, runs, servers
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from tests.worlds.scripted_server import Answer, ScriptedServer
from tests.worlds.tiny_model import make_tokenizer

LIMIT_S = 60.0
EOS = 1


class Varied:
    """Completions of one prompt get different lengths, so that every group has a signal."""

    def __init__(self, *more_ids: int, **answer: Any) -> None:
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._more_ids = more_ids
        self._answer = answer

    def __call__(self, prompt: list[int], params: dict[str, Any], n: int) -> Answer:
        self._counts[tuple(prompt)] += 1
        return Answer([10] * (1 + self._counts[tuple(prompt)] % 3) + [*self._more_ids, EOS], **self._answer)


def length_reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Longer is better."""
    return [float(len(ids)) for ids in completion_ids]


def rows(num_rows: int) -> list[dict[str, Any]]:
    """Prompts "0", "1", ... with a column `number`."""
    return [{"prompt": [{"role": "user", "content": str(i)}], "number": i} for i in range(num_rows)]


@dataclass
class RunWorld:
    """One run, registered as its launcher and trainer would have done it."""

    folder: Path
    server: ScriptedServer
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = f"sqlite:///{self.folder / 'agrpo.db'}"
        store = Store.open(self.url)
        store.migrate()
        runs.create_run(store, "run", self.config, "hash", str(self.folder))
        self.attempt: Attempt = leases.acquire(store, "run", leases.this_process())
        self.store = store
        self.server_id = servers.register(self.attempt, self.server.url, 0)
        servers.set_state(self.attempt, self.server_id, "healthy")
        servers.confirm_version(self.attempt, self.server_id, 0)
        policies.publish(self.attempt, 0, 0, "digest")
        runs.set_allowance(self.attempt, 0, 1_000_000)
        self.process_id = self.register_worker(os.getpid())

    def register_worker(self, pid: int) -> int:
        return processes.register(self.attempt, "worker", 0, pid, pid, 0, "log")

    def spec(
        self,
        dataset: Any,
        reward_funcs: Sequence[Callable[..., Any]] = (length_reward,),
        loop_cls: type[AsyncRolloutLoop] = AsyncRolloutLoop,
    ) -> WorkerSpec:
        tokenizer = make_tokenizer()
        settings = {"num_generations": 2, "max_steps": -1, "num_train_epochs": 1, "max_completion_length": 8}
        config = AsyncGRPOConfig(output_dir=str(self.folder), use_cpu=True, **{**settings, **self.settings})
        assert tokenizer.eos_token_id is not None
        return WorkerSpec(
            config, "scripted", tokenizer, (tokenizer.eos_token_id,), dataset, tuple(reward_funcs), self.url,
            "run", self.attempt.token, loop_cls,
        )  # fmt: skip

    def run(self, spec: WorkerSpec, until: Callable[[], bool]) -> float:
        """Work until the condition holds; the seconds it took. Raises the worker's own error."""

        async def drive() -> float:
            worker = asyncio.ensure_future(work(spec, self.attempt, self.process_id))
            begin = time.monotonic()
            while not worker.done() and not until():
                assert time.monotonic() - begin < LIMIT_S, "the condition never held"
                await asyncio.sleep(0.01)
            seconds = time.monotonic() - begin
            worker.cancel()
            await worker
            return seconds

        try:
            return asyncio.run(drive())
        except BaseExceptionGroup as errors:
            raise root_error(errors) from None


def prompt_ids(spec: WorkerSpec, row_index: int) -> list[int]:
    text = spec.tokenizer.apply_chat_template(spec.dataset[row_index]["prompt"], add_generation_prompt=True)
    return list(text["input_ids"])


def finished(world: RunWorld, count: int) -> bool:
    done = [group for group in groups.groups(world.store, "run") if group.status != "claimed"]
    return len(done) >= count


def by_status(world: RunWorld) -> dict[str, int]:
    found = [group.status for group in groups.groups(world.store, "run")]
    return {status: found.count(status) for status in set(found)}
