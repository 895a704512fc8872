"""The mark of reward functions that need a process of their own."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def isolated(function: F) -> F:
    """Run this reward function in a process: it uses signals, or may hang where no thread can be interrupted."""
    function.isolation = "process"  # type: ignore[attr-defined]
    return function
