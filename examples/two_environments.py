"""Two environments in one run; a column says which one a row is for, and only its tools are shown."""

import random
from typing import Any

CALL = '<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def rows() -> list[dict[str, Any]]:
    """Counting and lamps in turn, each with a worked example; the tasks come from the environments."""
    counting = ("counter", "Increment the counter by 3.", CALL.format(name="increment", arguments='{"step": 3}'))
    lighting = ("lamp", "Light the lamp in white.", CALL.format(name="light", arguments='{"colour": "white"}'))
    return [_row(*shown) for _ in range(256) for shown in (counting, lighting)]


def _row(environment: str, question: str, call: str) -> dict[str, Any]:
    shown = [{"role": "user", "content": question}, {"role": "assistant", "content": call}]
    return {"environment": environment, "prompt": [*shown, {"role": "user", "content": ""}]}


class CounterEnvironment:
    """Count to a number."""

    def reset(self, **columns: object) -> str:
        """Choose a target."""
        self.counter, self.target = 0, random.randint(2, 9)
        return f"Increment the counter by {self.target}."

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: Value to add to the counter.
        """
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        """1 for the target, a little for a counter that moved."""
        return 1.0 if self.counter == self.target else 0.2 * (self.counter != 0)


class LampEnvironment:
    """Light a lamp in a colour."""

    def reset(self, **columns: object) -> str:
        """Choose a colour."""
        self.colour, self.wanted = "off", random.choice(["red", "green", "blue"])
        return f"Light the lamp in {self.wanted}."

    def light(self, colour: str) -> str:
        """Light the lamp.

        Args:
            colour: The colour.
        """
        self.colour = colour
        return f"The lamp is {colour}."

    def get_reward(self) -> float:
        """1 for the colour, a little for any light."""
        return 1.0 if self.colour == self.wanted else 0.2 * (self.colour != "off")
