"""A tool whose code runs somewhere else."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from agrpo.tools.calls import Schema


class ProxyTool:
    """Stands for a function, or the method of an object, in another process; awaits its answer within its limit."""

    def __init__(
        self,
        schema: Schema,
        signature: inspect.Signature,
        call: Callable[[str, dict[str, Any]], Awaitable[Any]],
        *,
        holds_state: bool,
    ) -> None:
        self.schema = schema
        self.holds_state = holds_state
        """Whether what it did before is lost with its process."""
        self.__name__: str = schema["function"]["name"]
        self.__signature__ = signature
        self._call = call

    async def __call__(self, **arguments: Any) -> Any:
        """Pass the call on."""
        return await self._call(self.__name__, arguments)
