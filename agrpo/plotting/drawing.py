"""Draws histories: one panel a question, one line a run, restarts as dotted verticals."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agrpo.plotting.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Panel:
    """A question about a run, and the values that answer it; further values are drawn thinner."""

    title: str
    values: tuple[str, ...]


PANELS = (
    Panel("reward", ("reward", "evaluation/reward")),
    Panel("loss", ("loss",)),
    Panel("entropy, nats", ("entropy",)),
    Panel("completion length, tokens", ("completions/mean_length", "completions/mean_terminated_length")),
    Panel("staleness, versions", ("sample/staleness_mean", "sample/staleness_max")),
    Panel("throughput, tokens/s", ("perf/wall_clock_trained_tokens_per_s", "rollout/generated_tokens_per_s")),
)
_STYLES = ("-", "--")
_COLUMNS = 3


def draw(histories: Sequence[History], picture: Literal["png", "svg"]) -> bytes:
    """The picture of one run or of several on the same axes."""
    figure = _figure(histories)
    file = io.BytesIO()
    figure.savefig(file, format=picture, dpi=110, metadata={"Date": None} if picture == "svg" else None)
    return file.getvalue()


def _figure(histories: Sequence[History]) -> "Figure":
    from matplotlib.figure import Figure  # takes half a second that commands without a picture need not spend

    rows = math.ceil(len(PANELS) / _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.9 * rows), layout="constrained")
    for panel, axes in zip(PANELS, figure.subplots(rows, _COLUMNS).flat, strict=False):
        _draw_panel(axes, panel, histories)
    figure.suptitle(", ".join(history.run_id for history in histories))
    return figure


def _draw_panel(axes: "Axes", panel: Panel, histories: Sequence[History]) -> None:
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    several = len(histories) > 1
    for number, history in enumerate(histories):
        colour = f"C{number % 10}"
        for name, style in zip(panel.values, _STYLES, strict=False):
            points = [(step, values[name]) for step, values in history.series if name in values]
            if points:
                label = f"{history.run_id}: {name}" if several else name
                marker = "o" if len(points) < 3 else ""
                axes.plot(*zip(*points, strict=True), style + marker, color=colour, linewidth=1.2, label=label)
        for mark in history.marks:
            axes.axvline(mark.step, color=colour if several else "0.4", linestyle=":", linewidth=1)
    if axes.has_data() and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=6, loc="best")
