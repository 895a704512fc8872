"""Numbers as people read them."""

import math
from typing import Any

from agrpo.store.evaluations import Evaluation


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """Seconds as 42 s, 3 min 05 s or 2 h 07 min."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def estimates(values: dict[str, Any] | None) -> list[tuple[str, str, str, str]]:
    """Name, value, low and high end of every estimate of an evaluation."""
    found = [(name, value) for name, value in (values or {}).items() if isinstance(value, dict)]
    return [
        (name, number(value["value"], 4), number(value["low"], 4), number(value["high"], 4)) for name, value in found
    ]


def evaluation_line(found: Evaluation) -> str:
    """An evaluation in one line, such as "step 50, 64 prompts: reward 0.6200 (0.5500 to 0.6900)"."""
    shown = ", ".join(f"{name} {value} ({low} to {high})" for name, value, low, high in estimates(found.values))
    return f"step {found.step}, {(found.values or {}).get('num_prompts', 0)} prompts: {shown}"
