"""An environment with a state: count to a number by calling a tool. The rows only show a small model how to call."""

import random
from typing import Any

CALL = '<tool_call>{{"name": "increment", "arguments": {{"step": {step}}}}}</tool_call>'


def rows() -> list[dict[str, Any]]:
    """512 times the same worked example; what is to be done comes from the environment."""
    shown = [_user("Increment the counter by 3."), {"role": "assistant", "content": CALL.format(step=3)}]
    return [{"prompt": [*shown, _user("")]} for _ in range(512)]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class IncrementEnvironment:
    """Says how far to count, counts when the model calls `increment`, and knows how well it went."""

    def reset(self, **columns: object) -> str:
        """Choose a target and tell the model."""
        self.counter = 0
        self.num_calls = 0
        self.target = random.randint(2, 9)
        return f"Increment the counter by {self.target}."

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The counter.
        """
        self.num_calls += 1
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        """1 for the target, a little for having called the tool at all."""
        if self.counter == self.target:
            return 1.0
        return 0.2 if self.num_calls else 0.0
