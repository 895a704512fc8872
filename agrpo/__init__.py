"""Asynchronous GRPO as a workflow-orchestrated pipeline with durable stages.

    launcher (in the flow run's process; in a plain script: rank 0's process)
      |-- vLLM server 1..k      real vLLM (GPU or CPU build), or given by URL and then never killed
      |-- rollout worker 1..n   asyncio: prompts -> rollouts -> rewards -> samples; commits finished work to the store
      |-- trainer 1..m ranks    torchrun or accelerate launch, a process of its own even with one rank
      `-- SQL store             SQLite file by default, PostgreSQL when more than one machine takes part

Everything between two processes is a row in the store or a vLLM HTTP call. Forward move the data: prompt, group,
samples, step, policy, server. Backwards flow two numbers through the store: policy version and token allowance.
"""

import importlib
from typing import Any

_HOMES = {
    "AsyncGRPOTrainer": "agrpo.trainer.async_grpo_trainer",
    "AsyncGRPOConfig": "agrpo.trainer.async_grpo_config",
    "AsyncRolloutLoop": "agrpo.rollout.loop",
    "AgentTask": "agrpo.harness.loop",
    "HarnessAsyncGRPOTrainer": "agrpo.harness.trainer",
    "HarnessRolloutLoop": "agrpo.harness.loop",
    "Rollout": "agrpo.records",
    "RolloutGroup": "agrpo.records",
    "TurnRecord": "agrpo.records",
    "isolated": "agrpo.marks",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that reading the store never imports torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'agrpo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
