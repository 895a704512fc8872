"""Tasks of the package verifiers (0.4 on): its own harness plays them, its own functions score them.

    gsm8k = VerifiersTasks("gsm8k", size=500)
    HarnessAsyncGRPOTrainer(model, agent=gsm8k, train_dataset=Dataset.from_list(gsm8k.rows()), args=...)

Harnesses are started with the program `uv`. The package wants older libraries than vLLM does: install it where agrpo
runs and give the servers an environment of their own (servers.python).
"""

import asyncio
import functools
import itertools
import os
import threading
from dataclasses import dataclass
from typing import Any

from agrpo.errors import Outage
from agrpo.harness.loop import AgentTask

KEY_VARIABLE = "AGRPO_HARNESS_KEY"
"""verifiers reads keys from the environment only; the endpoint's address is its key, so that any value will do."""
_LOADING = threading.Lock()
"""A taskset may download and prepare a whole dataset: the rollouts that begin together wait for one of them."""
_OUTAGES = {"SandboxError", "ToolsetError", "TunnelError", "InterceptionError", "ProviderError", "TimeoutError"}


@dataclass(frozen=True, slots=True)
class VerifiersTasks:
    """A taskset and the harness that plays it; an agent for HarnessAsyncGRPOTrainer."""

    taskset: str
    size: int
    """Tasks taken from its beginning."""
    harness: str = "null"
    """`null` chats without tools of its own; see the package for others."""
    runtime: str = "subprocess"
    """Where the harness runs; `docker` keeps what it does away from this machine."""

    def rows(self) -> list[dict[str, Any]]:
        """One row a task; its prompt is for people, the harness sends its own."""
        return [{"prompt": _shown(task.data), "task": i} for i, task in enumerate(self._tasks())]

    async def __call__(self, task: AgentTask) -> float:
        """One episode; its reward. Raises Outage for sandboxes and servers that are away, RuntimeError for bugs."""
        played = (await asyncio.to_thread(self._tasks))[task.columns["task"]]
        import verifiers.v1 as vf  # after a thread has imported it

        os.environ.setdefault(KEY_VARIABLE, "unused")
        environment = self._environment()
        client = vf.EvalClientConfig(base_url=task.base_url, api_key_var=KEY_VARIABLE)
        async with environment.serving():
            episode = await environment.run_episode(played, vf.ModelContext(model=task.model, client=client))
        for error in [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]:
            words = f"task {task.columns['task']} of {self.taskset}: {error.type}: {error.message}"
            raise Outage(words) if error.type in _OUTAGES else RuntimeError(f"{words}\n{error.traceback}")
        return float(sum(trace.reward for trace in episode.traces))

    def _tasks(self) -> list[Any]:
        with _LOADING:
            return _load(self)

    def _environment(self) -> Any:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import load_environment

        agent = {"harness": {"id": self.harness}, "runtime": {"type": self.runtime}}
        return load_environment(
            vf.SingleAgentEnvConfig.model_validate({"taskset": {"id": self.taskset}, "agent": agent})
        )


@functools.cache
def _load(tasks: VerifiersTasks) -> list[Any]:
    return list(itertools.islice(tasks._environment().taskset, tasks.size))


def _shown(data: Any) -> list[dict[str, str]]:
    text = data.prompt if isinstance(data.prompt, str) else str(data.prompt)
    return [{"role": "user", "content": text}]
