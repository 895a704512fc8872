"""What the worker measures between two windows of metrics."""

from collections import Counter, defaultdict


class Gauges:
    """Means of readings and sums of counts since the last window, under the names of docs/metrics.md."""

    def __init__(self) -> None:
        self._readings: dict[str, list[float]] = defaultdict(list)
        self._counts: Counter[str] = Counter()
        self._totals: dict[str, float] = {}

    def read(self, name: str, value: float) -> None:
        """Add a reading; the window holds the mean."""
        self._readings[name].append(value)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a count."""
        self._counts[name] += amount  # type: ignore[assignment]

    def total(self, name: str, value: float) -> None:
        """Report a total that only grows; the window holds what was added. A smaller one has started again from 0."""
        before = self._totals.get(name, 0.0)
        self.count(name, value - before if value >= before else value)
        self._totals[name] = value

    def take(self) -> dict[str, float]:
        """The window so far; a new one begins."""
        means = {name: sum(values) / len(values) for name, values in self._readings.items()}
        window = {**means, **{name: float(value) for name, value in self._counts.items()}}
        self._readings.clear()
        self._counts.clear()
        return window
