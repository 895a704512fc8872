"""An environment in a process of its own, which is ended when a call hangs or the process dies."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from agrpo.environments.methods import RESERVED, accepted, check_kind, has_reward, made, tool_names
from agrpo.rollout.child import PIPE_S, Child, Served
from agrpo.rollout.threads import Threads
from agrpo.tools.proxy import ProxyTool
from agrpo.tools.schemas import schema_of


class RemoteEnvironment:
    """The same as a LocalEnvironment, from outside."""

    def __init__(self, child: Child, threads: Threads, tool_timeout_s: float) -> None:
        self.kind: type = child.info
        check_kind(self.kind)
        self.name = self.kind.__name__
        self.tools = [self._tool(name, tool_timeout_s) for name in tool_names(self.kind)]
        self.scores_itself = has_reward(self.kind)
        self._reset = inspect.getattr_static(self.kind, "reset")
        self._child = child
        self._threads = threads

    @classmethod
    def start(cls, factory: Callable[[], Any], threads: Threads, tool_timeout_s: float, timeout_s: float) -> Any:
        """Start a process and make the environment in it; blocks."""
        child = Child.start(partial(_served, factory), timeout_s)
        try:
            return cls(child, threads, tool_timeout_s)
        except BaseException:
            child.end()
            raise

    async def reset(self, columns: dict[str, Any], timeout_s: float) -> Any:
        """Begin a rollout; None, or what the environment says to the model."""
        return await self._call("reset", accepted(self._reset, columns), timeout_s)

    async def get_reward(self, timeout_s: float) -> Any:
        """The environment's own reward for the rollout that has just ended."""
        return await self._call("get_reward", {}, timeout_s)

    def close(self) -> None:
        """Leave what the instance holds and end the process."""
        self._child.end()

    def _tool(self, name: str, timeout_s: float) -> ProxyTool:
        function = getattr(self.kind, name)
        signature = inspect.signature(function)
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return await self._call(name, arguments, timeout_s)

        return ProxyTool(schema_of(function), signature.replace(parameters=parameters), call, holds_state=True)

    async def _call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        return await self._threads.call(lambda: self._child.call(name, arguments, timeout_s), timeout_s + PIPE_S)


def _served(factory: Callable[[], Any]) -> Served:
    """In the process: the class, and the methods of the instance by name."""
    instance, leave = made(factory)
    kind = type(instance)
    names = [*tool_names(kind), *(name for name in RESERVED if hasattr(instance, name))]
    return Served({name: getattr(instance, name) for name in names}, kind, leave)
