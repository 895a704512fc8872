"""JSON as the store writes it: NaN and infinities, which JSON has no words for, become strings."""

import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """JSON text of a plain value."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def to_floats(values: dict[str, Any]) -> dict[str, float]:
    """Numbers by name as `dumps` wrote them, "nan" and "inf" included."""
    return {name: float(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
