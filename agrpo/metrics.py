"""How values become one number per window; a window is everything since the last log (docs/metrics.md)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["count", "max", "min", "mean"]


def kind_of(name: str) -> Kind:
    """The rule of a metric, read off the words in the last part of its name."""
    words = name.rsplit("/", 1)[-1].split("_")
    if "count" in words:
        return "count"
    for extreme in ("max", "min"):
        if extreme in words:
            # `completions/mean_terminated_length` has neither word; `max_length` and `turns_max` are extremes.
            return extreme
    return "mean"


def weight_name(name: str) -> str:
    """Where a group's measurements say for how many things the mean `name` stands, if not for its rollouts."""
    return f"weight:{name}"


def is_weight(name: str) -> bool:
    """Whether a measurement is such a number."""
    return name.startswith("weight:")


@dataclass(slots=True)
class _Tally:
    """A sum, an extreme, or the two parts of a quotient."""

    total: float
    weight: float


class Window:
    """Values of one process since the last log; windows of several processes merge into one."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        """Count a value by its name's rule; `weight` is how many things a mean stands for. NaN is no value."""
        if math.isnan(value) or weight == 0:
            return
        tally = _Tally(value, weight) if kind_of(name) != "mean" else _Tally(value * weight, weight)
        self._put(name, tally)

    def add_all(self, name: str, values: Iterable[float]) -> None:
        """Count several values of the same metric."""
        for value in values:
            self.add(name, value)

    def add_rate(self, name: str, amount: float, seconds: float) -> None:
        """Count an amount and the time it took: the window's rate is total over total."""
        self._put(name, _Tally(amount, seconds))

    def merge(self, other: "Window") -> None:
        """Take over another process's values of the same window."""
        for name, tally in other._tallies.items():
            self._put(name, tally)

    def clear(self) -> None:
        """Begin a new window."""
        self._tallies.clear()

    def values(self) -> dict[str, float]:
        """One number per metric."""
        return {name: self._value(name, tally) for name, tally in self._tallies.items() if tally.weight > 0}

    def _put(self, name: str, tally: _Tally) -> None:
        held = self._tallies.get(name)
        if held is None:
            self._tallies[name] = _Tally(tally.total, tally.weight)
            return
        kind = kind_of(name)
        if kind in ("max", "min"):
            held.total = max(held.total, tally.total) if kind == "max" else min(held.total, tally.total)
        else:
            held.total += tally.total
            held.weight += tally.weight

    def _value(self, name: str, tally: _Tally) -> float:
        return tally.total / tally.weight if kind_of(name) == "mean" else tally.total
