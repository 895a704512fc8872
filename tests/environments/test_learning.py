"""A model of 100k parameters learns to open a lock in two turns: environment, worker, real vLLM and trainer."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from agrpo import AsyncGRPOConfig, AsyncGRPOTrainer
from agrpo.records import Message
from tests.worlds.tiny_model import CHAT_TEMPLATE, EOS, make_tokenizer
from tests.worlds.vllm_server import VllmServer

MAX_STEPS = 30
GOAL = 0.85
KEYS = "0123456789"
SIGNS = KEYS + "abcdefghijklmnop"

TEMPLATE = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + CHAT_TEMPLATE
# A reply that begins with a digit presses that key.
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant:",
    "fields": {
        "content": {"close": EOS},
        "tool_calls": {
            "open_pattern": r"\A(?P<key>[0-9])",
            "close": EOS,
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "press", "arguments": {"key": "{key}"}}},
        },
    },
}


class Lock:
    """Opens to a low digit and then a high one; each is worth half."""

    def reset(self, **columns: Any) -> str:
        self.pressed: list[str] = []
        return "Open."

    def press(self, key: str) -> str:
        """Press a key.

        Args:
            key: A digit.
        """
        self.pressed.append(key)
        return "next"

    def get_reward(self) -> float:
        low, high = (*self.pressed, "", "")[:2]
        return 0.5 * (low in KEYS[:5] and low != "") + 0.5 * (high in KEYS[5:] and high != "")


class UntilLearnt(TrainerCallback):
    """Keeps the environment's mean reward of every step and stops at the goal, as a solved task gives no signal."""

    def __init__(self) -> None:
        self.rewards: list[float] = []

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float], **_: Any) -> None:
        if "rewards/Lock/mean" in logs:
            self.rewards.append(logs["rewards/Lock/mean"])
            control.should_training_stop = self.rewards[-1] > GOAL


def test_the_reward_of_an_environment_of_two_turns_rises(trained_vllm_server: VllmServer) -> None:
    rewards = learn(trained_vllm_server, trained_vllm_server.second_run_dir, seed=0)
    assert np.mean(rewards[:2]) < 0.5 and rewards[-1] > GOAL, rewards


def learn(server: VllmServer, folder: Path, seed: int, **settings: Any) -> list[float]:
    """The environment's mean reward of every step."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSES
    given: dict[str, Any] = {
        "max_steps": MAX_STEPS,
        "groups_per_step": 4,
        "num_generations": 8,
        "max_completion_length": 4,
        "max_tool_calling_iterations": 2,
        "learning_rate": 1e-3,
        "max_staleness": 1,
        "num_sampler_logprobs": 4,
        "gradient_checkpointing": False,
        "save_strategy": "no",
    }
    args = AsyncGRPOConfig(
        output_dir=str(folder),
        vllm_server_base_url=server.url,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        **{**given, **settings},
    )
    model = taught_to_be_brief(server.model_path, tokenizer, seed)
    progress = UntilLearnt()
    parts: dict[str, Any] = {"processing_class": tokenizer, "callbacks": [progress]}
    AsyncGRPOTrainer(model, args=args, environment_factory=Lock, **parts).train()
    return progress.rewards


def taught_to_be_brief(path: Path, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """The model after some conversations of one sign a turn, any one: at random it hardly ever ends a turn."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    chance = random.Random(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(100):
        texts = [_any_conversation(tokenizer, chance) for _ in range(16)]
        ids = tokenizer(texts, add_special_tokens=False, return_tensors="pt")["input_ids"]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def _any_conversation(tokenizer: PreTrainedTokenizerFast, chance: random.Random) -> str:
    messages: list[Message] = [{"role": "user", "content": "Open."}]
    for _ in range(3):
        messages += [{"role": "assistant", "content": chance.choice(SIGNS)}, {"role": "tool", "content": "next"}]
    tools = [{"function": {"name": "press"}}]
    return str(tokenizer.apply_chat_template(messages[:-1], tools=tools, tokenize=False))
