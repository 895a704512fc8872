"""Two environments in one run; a column says which one a row is for, and only its tools are shown."""

import random

CALL = '<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def rows() -> list[dict[str, str]]:
    """Counting and lamps in turn; everything else comes from the environments."""
    return [{"environment": name} for name in ("counter", "lamp") * 256]


class CounterEnvironment:
    """Count to a number."""

    def reset(self, **columns: object) -> str:
        """Choose a target."""
        self.counter, self.target = 0, random.randint(2, 9)
        call = CALL.format(name="increment", arguments='{"step": 1}')
        return f"Increment the counter by {self.target}. To increment it by 1 you write only: {call}"

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
        call = CALL.format(name="light", arguments='{"colour": "white"}')
        return f"Light the lamp in {self.wanted}. To light it in white you write only: {call}"

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
