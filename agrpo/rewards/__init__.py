"""Reward functions that are ready to use; each is called with prompts, completions and columns."""

from agrpo.marks import isolated
from agrpo.rewards.accuracy import accuracy_reward, reasoning_accuracy_reward
from agrpo.rewards.format import think_format_reward
from agrpo.rewards.length import get_cosine_scaled_reward, get_soft_overlong_punishment
from agrpo.rewards.repetition import get_repetition_penalty_reward

__all__ = [
    "accuracy_reward",
    "get_cosine_scaled_reward",
    "get_repetition_penalty_reward",
    "get_soft_overlong_punishment",
    "isolated",
    "reasoning_accuracy_reward",
    "think_format_reward",
]
