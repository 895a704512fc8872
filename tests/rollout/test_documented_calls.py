"""Every way in which rewards, tools, environments and hooks are given to the trainer, down to groups in the store."""

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from agrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from agrpo.records import RolloutGroup
from agrpo.store import groups
from agrpo.trainer.async_grpo_trainer import AsyncRolloutLoop
from tests.rollout.run_world import RunWorld
from tests.worlds.chat_families import QWEN25, family_tokenizer
from tests.worlds.scripted_server import Answer, ScriptedServer
from tests.worlds.tiny_model import make_tiny_model

TOKENIZER = family_tokenizer(QWEN25)
ARGUMENTS = {"square": '{"number": 3}', "plus_one": '{"number": 3}', "climb": '{"steps": 2}', "look": "{}"}


def length(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


async def dots(prompts, completions, **kwargs):
    return [0.5 * completion[-1]["content"].count(".") for completion in completions]


def on_sums(completions, task, **kwargs):
    return [
        float(len(completion[-1]["content"])) if kind == "sum" else None
        for completion, kind in zip(completions, task, strict=True)
    ]


def on_words(completions, task, **kwargs):
    return [1.0 if kind == "word" else None for kind in task]


def square(number: int) -> int:
    """Squares an integer.

    Args:
        number: Any integer.

    Returns:
        Its square.
    """
    return number * number


async def plus_one(number: int) -> int:
    """
    Adds one.

    Args:
        number: Any integer.

    Returns:
        The next integer.
    """
    return number + 1


class Tower:
    """Owns its task; the description of its tool is left out."""

    def reset(self, **kwargs) -> str | None:
        self.height = 0
        return "Climb 2 steps."

    def get_reward(self) -> float:
        return float(self.height == 2)

    def climb(self, steps: int) -> int:
        self.height += steps
        return self.height


class GivenTower(Tower):
    """Its task is a column."""

    def reset(self, goal, **kwargs) -> None:
        self.height, self.goal = 0, goal


class Window:
    """Scored by somebody else."""

    def reset(self, **kwargs) -> str:
        return "Look out."

    def look(self) -> str:
        """Look out of the window.

        Returns:
            What is seen.
        """
        return "clouds"


@dataclass
class PatientConfig(AsyncGRPOConfig):
    solved_at: float = 0.5


class PatientLoop(AsyncRolloutLoop):
    def filter_prompt(self, row_index, row, epoch):
        return self.shares.get(row_index, 0.0) < self.config.solved_at

    async def setup(self):
        self.shares: dict[int, float] = {}

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        known = group.rewards[~np.isnan(group.rewards)]
        if len(known):
            self.shares[group.row_index] = float(np.mean(known > 0))
        return super().compute_advantages(group)


class PatientTrainer(AsyncGRPOTrainer):
    loop_cls = PatientLoop


class JudgedLoop(AsyncRolloutLoop):
    """Scores what it generated, and leaves the last token of every turn out of the loss."""

    async def generate_one(self, prompt, tools, group_id=0):
        rollout = await super().generate_one(prompt, tools, group_id)
        rollout.reward = float(len(rollout.completion_ids))
        return rollout

    async def generate_one_turn(self, prompt_ids):
        turn = await super().generate_one_turn(prompt_ids)
        turn.output_mask = [1] * (len(turn.output_ids) - 1) + [0]
        return turn

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        assert not any(sample.trained[-1] for samples in group.completions_sequences for sample in samples)
        return super().compute_advantages(group)


class JudgedTrainer(AsyncGRPOTrainer):
    loop_cls = JudgedLoop


@dataclass
class Way:
    """How a trainer is made, and what its first group then is."""

    parts: dict[str, Any]
    sources: set[str]
    num_calls: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    trainer: type[AsyncGRPOTrainer] = AsyncGRPOTrainer
    config: type[AsyncGRPOConfig] = AsyncGRPOConfig


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


PLAIN = Dataset.from_list([{"prompt": say(f"Say {i}.")} for i in range(4)])
TASKS = Dataset.from_list([{"prompt": say("1+1?"), "task": "sum"}, {"prompt": say("A word?"), "task": "word"}] * 2)
GOALS = Dataset.from_dict({"prompt": [say(f"Climb {i} steps.") for i in range(1, 5)], "goal": [1, 2, 3, 4]})
ROUTES = Dataset.from_dict({"environment": ["tower", "window"] * 2})
ENDLESS = {"max_steps": 1000}

WAYS = {
    "one reward": Way({"reward_funcs": length, "train_dataset": PLAIN}, {"length"}),
    "several rewards": Way({"reward_funcs": [length, dots], "train_dataset": PLAIN}, {"length", "dots"}),
    "several tasks": Way({"reward_funcs": [on_sums, on_words], "train_dataset": TASKS}, {"on_sums", "on_words"}),
    "tools": Way({"reward_funcs": length, "train_dataset": PLAIN, "tools": [square, plus_one]}, {"length"}, 1),
    "an environment with its own task": Way(
        {"environment_factory": Tower}, {"Tower"}, 1, {**ENDLESS, "chat_template_kwargs": {"enable_thinking": False}}
    ),
    "an environment with tasks of a dataset": Way(
        {"environment_factory": GivenTower, "train_dataset": GOALS}, {"GivenTower"}, 1
    ),
    "an environment and a reward": Way(
        {"environment_factory": Tower, "reward_funcs": length}, {"Tower", "length"}, 1, ENDLESS
    ),
    "several environments": Way(
        {
            "environment_factory": {"tower": Tower, "window": Window},
            "reward_funcs": length,
            "train_dataset": ROUTES,
        },
        {"Tower", "length"},
        1,
    ),
    "tools and an environment": Way({"environment_factory": Tower, "tools": [square]}, {"Tower"}, 1, ENDLESS),
    "an environment without further rewards": Way(
        {"environment_factory": Tower, "reward_funcs": []}, {"Tower"}, 1, ENDLESS
    ),
    "a loop that scores": Way({"train_dataset": PLAIN}, {"rollout"}, trainer=JudgedTrainer),
    "a loop that scores an environment": Way({"environment_factory": Window}, {"rollout"}, 1, ENDLESS, JudgedTrainer),
    "a curriculum": Way(
        {"reward_funcs": length, "train_dataset": PLAIN},
        {"length"},
        0,
        {"solved_at": 0.9},
        PatientTrainer,
        PatientConfig,
    ),
}


def script(prompt: list[int], params: dict[str, Any], n: int) -> Answer:
    """Call the first known tool that the prompt shows, then say something; one of three rollouts says more."""
    text = TOKENIZER.decode(prompt)
    shown = [name for name in ARGUMENTS if f'"name": "{name}"' in text]
    answer = "Done." + "." * (n % 3)
    if shown and "<tool_response>" not in text:
        answer = f'<tool_call>\n{{"name": "{shown[0]}", "arguments": {ARGUMENTS[shown[0]]}}}\n</tool_call>'
    return Answer([*TOKENIZER.encode(answer, add_special_tokens=False), 0])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RunWorld]:
    with ScriptedServer(script, max_model_len=4096) as server:
        yield RunWorld(tmp_path, server)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_groups_come_of_every_way(world: RunWorld, model: Path, way: Way) -> None:
    args = way.config(output_dir=str(world.folder), use_cpu=True, report_to="none", num_generations=4, **way.settings)
    trainer = way.trainer(model=str(model), args=args, processing_class=TOKENIZER, **way.parts)
    spec = pickle.loads(pickle.dumps(trainer._worker_spec(world.url, "run", world.attempt.token)))

    world.run(spec, lambda: bool(groups.scored_since(world.store, "run", 0)))
    (group, *_) = groups.scored_since(world.store, "run", 0)
    assert set(group.rollouts[0].rewards) == way.sources
    assert {rollout.tool_call_count for rollout in group.rollouts} == {way.num_calls}
    assert all(rollout.tool_failure_count == 0 for rollout in group.rollouts)
    assert not any(math.isnan(rollout.reward) for rollout in group.rollouts)
