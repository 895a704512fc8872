"""Numbers as people read them."""

import math


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
