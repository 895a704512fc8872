"""The trainer of foreign agents."""

import functools
from dataclasses import replace
from typing import Any

from agrpo.harness.loop import Agent, HarnessRolloutLoop
from agrpo.rollout.worker import WorkerSpec
from agrpo.trainer.async_grpo_trainer import AsyncGRPOTrainer


class HarnessAsyncGRPOTrainer(AsyncGRPOTrainer):
    """Trains an agent that runs inside its own framework and asks an OpenAI-compatible endpoint.

    `agent(task=AgentTask)` is called once per rollout, sync or async; what it returns, if anything, is its reward. It
    must be picklable, like reward functions. All other arguments are those of AsyncGRPOTrainer.
    """

    loop_cls = HarnessRolloutLoop

    def __init__(self, *arguments: Any, agent: Agent, agent_timeout_s: float = 3600.0, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.agent = agent
        self.agent_timeout_s = agent_timeout_s

    def _worker_spec(self, store_url: str, run_id: str, token: int) -> WorkerSpec:
        loop = functools.partial(HarnessRolloutLoop, agent=self.agent, agent_timeout_s=self.agent_timeout_s)
        return replace(super()._worker_spec(store_url, run_id, token), loop_cls=loop)
