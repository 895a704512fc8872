"""What of a user's class is what: the reserved methods, the tools, the columns that reset takes."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from agrpo.errors import BadInput

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


def made(factory: Callable[[], Any]) -> Any:
    """A new instance; one that is a context manager is entered, and left when it is given up."""
    instance = factory()
    return instance.__enter__() if isinstance(instance, AbstractContextManager) else instance


def left(instance: Any) -> None:
    """Leave an instance that was entered."""
    if isinstance(instance, AbstractContextManager):
        instance.__exit__(None, None, None)


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
