"""An environment that owns its data: count to a number of its own choice by calling a tool."""

import random

CALL = '<tool_call>{{"name": "increment", "arguments": {{"step": {step}}}}}</tool_call>'


class IncrementEnvironment:
    """Says how far to count, counts when the model calls `increment`, and knows how well it went."""

    def reset(self, **columns: object) -> str:
        """Choose a target and tell the model."""
        self.counter = 0
        self.num_calls = 0
        self.target = random.randint(2, 9)
        example = CALL.format(step=1)
        return f"Increment the counter by {self.target}. To increment it by 1 you write only: {example}"

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
