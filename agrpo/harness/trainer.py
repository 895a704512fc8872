"""The trainer of foreign agents."""

import functools
import inspect
from dataclasses import replace
from typing import Any

from agrpo.errors import BadInput
from agrpo.harness.loop import Agent, HarnessRolloutLoop
from agrpo.rollout.worker import WorkerSpec
from agrpo.trainer.async_grpo_trainer import AsyncGRPOTrainer


class HarnessAsyncGRPOTrainer(AsyncGRPOTrainer):
    """Trains an agent that runs inside its own framework and asks an OpenAI-compatible endpoint.

    `agent(task=AgentTask)` is called once per rollout, sync or async; what it returns, if anything, is its reward. It
    must be picklable, like reward functions. All other arguments are those of AsyncGRPOTrainer, but for tools and
    environment_factory, which are the agent's own; `loop_cls` is a subclass of HarnessRolloutLoop.
    """

    loop_cls = HarnessRolloutLoop

    def __init__(self, *arguments: Any, agent: Agent, agent_timeout_s: float = 3600.0, **keywords: Any) -> None:
        if not issubclass(self.loop_cls, HarnessRolloutLoop):
            raise BadInput(
                f"loop_cls={self.loop_cls.__name__} runs no agent; make it a subclass of agrpo.HarnessRolloutLoop"
            )
        given = inspect.signature(AsyncGRPOTrainer).bind(*arguments, **keywords).arguments
        if self.loop_cls.generate_one is HarnessRolloutLoop.generate_one:
            for name in ("tools", "environment_factory"):
                if given.get(name):
                    raise BadInput(f"{name} would do nothing: the agent brings its own; leave {name} out")
        super().__init__(*arguments, **keywords)
        self.agent = agent
        self.agent_timeout_s = agent_timeout_s

    def _worker_spec(self, store_url: str, run_id: str, token: int) -> WorkerSpec:
        loop = functools.partial(self.loop_cls, agent=self.agent, agent_timeout_s=self.agent_timeout_s)
        return replace(super()._worker_spec(store_url, run_id, token), loop_cls=loop)
