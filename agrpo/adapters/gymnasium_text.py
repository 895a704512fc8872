"""Environments of the package gymnasium that can be drawn as text, such as its toy_text family.

frozen_lake = functools.partial(GymnasiumText, "FrozenLake-v1", task="Walk from S to G, around the holes H.",
                                actions=("left", "down", "right", "up"), options={"is_slippery": False})
# environment.factory: "tasks.py:frozen_lake"
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_COLOUR = re.compile("\x1b\\[[0-9;]*m")


class GymnasiumText:
    """One episode a rollout; the model acts by name and sees the drawing, the reward is the episode's sum."""

    def __init__(
        self, env_id: str, task: str, actions: Sequence[str], options: Mapping[str, Any] | None = None
    ) -> None:
        import gymnasium

        self._environment: Any = gymnasium.make(env_id, render_mode="ansi", **(options or {}))
        self._task = task
        self._actions = list(actions)

    def reset(self, seed: int | None = None, **columns: Any) -> str:
        """Begin an episode, the same one for the same `seed` column; the task, the actions and the first drawing."""
        self._environment.reset(seed=seed)
        self._return = 0.0
        self._is_over = False
        return f"{self._task} Actions: {', '.join(self._actions)}.\n{self._drawing()}"

    def act(self, action: str) -> str:
        """Take one action and see what follows.

        Args:
            action: Name of the action.

        Returns:
            The new drawing, and whether the episode is over.
        """
        if self._is_over:
            return "The episode is over."
        if action not in self._actions:
            return f"There is no action {action!r}; choose one of {', '.join(self._actions)}."
        _, reward, terminated, truncated, _ = self._environment.step(self._actions.index(action))
        self._return += float(reward)
        self._is_over = terminated or truncated
        return self._drawing() + ("\nThe episode is over." if self._is_over else "")

    def get_reward(self) -> float:
        """Sum of the episode's rewards."""
        return self._return

    def _drawing(self) -> str:
        """The text of the environment; the colour that marks the player becomes brackets."""
        drawn = re.sub("\x1b\\[4[0-9]m(.)\x1b\\[0m", r"[\1]", str(self._environment.render()))
        return _COLOUR.sub("", drawn).strip("\n")
