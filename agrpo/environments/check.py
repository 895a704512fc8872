"""Tools and environments as a script or run file gives them, looked at before anything starts."""

from collections.abc import Callable, Mapping
from typing import Any

from agrpo.environments.methods import check_kind, has_reward, tool_names
from agrpo.environments.pool import COLUMN, Factory
from agrpo.errors import BadInput
from agrpo.tools.schemas import schema_of
from agrpo.tools.toolbox import by_name


def check_tools(tools: Any) -> tuple[Callable[..., Any], ...]:
    """The tools as a tuple. Raises BadInput for one that cannot be described, and for two of one name."""
    listed = tuple(tools or ())
    by_name(listed)
    return listed


def check_environments(
    factory: Any, tools: tuple[Callable[..., Any], ...], scored_elsewhere: object, dataset: Any
) -> Factory | Mapping[str, Factory] | None:
    """The factory, or factories by name. Raises BadInput for what could not run; a function is looked at only later.

    `scored_elsewhere` holds where reward functions or the rollout loop give rewards too.
    """
    if factory is None:
        return None
    factories = list(factory.values()) if isinstance(factory, Mapping) else [factory]
    for one in factories:
        if not callable(one):
            raise BadInput(f"environment_factory holds {one!r:.100}; give a class, or a function that makes instances")
        if isinstance(one, type):
            check_kind(one)
            _check_tools_of(one, tools)
    if not scored_elsewhere and not any(has_reward(one) for one in factories if isinstance(one, type)):
        known = [one.__name__ for one in factories if isinstance(one, type)]
        if len(known) == len(factories):
            raise BadInput(f"nothing gives a reward: write get_reward in {', '.join(known)}, or give reward_funcs")
    if isinstance(factory, Mapping):
        _check_column(dataset)
    return factory  # type: ignore[no-any-return]


def _check_tools_of(kind: type, tools: tuple[Callable[..., Any], ...]) -> None:
    methods = [getattr(kind, name) for name in tool_names(kind)]
    for method in methods:
        schema_of(method)
    by_name([*tools, *methods])


def _check_column(dataset: Any) -> None:
    row = next(iter(dataset or ()), None)
    if not isinstance(row, Mapping) or COLUMN not in row:
        raise BadInput(
            f"a dict of environments needs train_dataset with a column {COLUMN!r} that names one in each row"
        )
