"""What of a user's class is what: the reserved methods, the tools, the columns that reset takes."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from agrpo.errors import BadInput
from agrpo.rollout.child import nothing

RESERVED = ("reset", "get_reward")


def tool_names(kind: type) -> list[str]:
    """Public methods of an environment's class, without the reserved ones."""
    return [name for name in dir(kind) if not name.startswith("_") and name not in RESERVED and _is_method(kind, name)]


def has_reward(kind: type) -> bool:
    """Whether the environment scores itself."""
    return hasattr(kind, "get_reward")


def check_kind(kind: type) -> None:
    """Raise BadInput for an environment without reset."""
    if not hasattr(kind, "reset"):
        raise BadInput(f"environment {kind.__name__} has no reset method; it is called at the start of every rollout")


def made(factory: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """A new instance, and what leaves it when it is given up; one that is a context manager is entered."""
    instance = factory()
    if isinstance(instance, AbstractContextManager):
        return instance.__enter__(), partial(instance.__exit__, None, None, None)
    return instance, nothing


def accepted(function: Callable[..., Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a function takes: all of them, where it has **keywords."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(columns)
    return {name: value for name, value in columns.items() if name in parameters}


def _is_method(kind: type, name: str) -> bool:
    # Looked up without asking the object: a property must not run.
    found = inspect.getattr_static(kind, name)
    return inspect.isfunction(found) or isinstance(found, staticmethod | classmethod)
