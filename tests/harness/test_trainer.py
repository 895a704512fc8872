"""The trainer of foreign agents: what it refuses, and what reaches its worker."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from agrpo import AsyncGRPOConfig, AsyncRolloutLoop, HarnessAsyncGRPOTrainer, HarnessRolloutLoop
from agrpo.errors import BadInput
from tests.environments.worlds import Increment
from tests.harness.test_harness import TOKENIZER, calculator_agent
from tests.rollout.run_world import rows
from tests.rollout.test_conversation import multiply
from tests.worlds.tiny_model import make_tiny_model


class OwnLoop(HarnessRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return row["number"] > 0


class OwnTrainer(HarnessAsyncGRPOTrainer):
    loop_cls = OwnLoop


class NoAgent(HarnessAsyncGRPOTrainer):
    loop_cls = AsyncRolloutLoop  # type: ignore[assignment]


def make(kind: type[HarnessAsyncGRPOTrainer], folder: Path, model: Any = "unused", **more: Any) -> Any:
    args = AsyncGRPOConfig(output_dir=str(folder), use_cpu=True, report_to="none")
    parts: dict[str, Any] = {"train_dataset": Dataset.from_list(rows(2)), "processing_class": TOKENIZER, **more}
    return kind(model, args=args, agent=calculator_agent, agent_timeout_s=7.0, **parts)


@pytest.mark.parametrize(("kind", "loop"), [(HarnessAsyncGRPOTrainer, HarnessRolloutLoop), (OwnTrainer, OwnLoop)])
def test_the_worker_runs_the_trainers_loop_with_the_agent(kind: Any, loop: type, tmp_path: Path) -> None:
    trainer = make(kind, tmp_path, str(make_tiny_model(tmp_path / "model")))
    made = pickle.loads(pickle.dumps(trainer._worker_spec("", "", 0))).loop_cls
    assert made.func is loop and made.keywords == {"agent": calculator_agent, "agent_timeout_s": 7.0}


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        (NoAgent, {}, "loop_cls=AsyncRolloutLoop runs no agent"),
        (OwnTrainer, {"tools": [multiply]}, "tools would do nothing"),
        (OwnTrainer, {"environment_factory": Increment}, "environment_factory would do nothing"),
    ],
)
def test_what_would_do_nothing_is_refused(kind: Any, more: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        make(kind, tmp_path, **more)
