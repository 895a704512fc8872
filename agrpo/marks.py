"""The mark of functions that need a process of their own."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def isolated(function: F) -> F:
    """Run this reward function, tool or environment in a process: it uses signals, leaks, or may hang for good."""
    function.isolation = "process"  # type: ignore[attr-defined]
    return function
