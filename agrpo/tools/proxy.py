"""A tool whose code runs somewhere else."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from agrpo.tools.calls import Schema


class ProxyTool:
    """Stands for a method of an object in another process; awaits its answer."""

    def __init__(
        self, schema: Schema, signature: inspect.Signature, call: Callable[[str, dict[str, Any]], Awaitable[Any]]
    ) -> None:
        self.schema = schema
        self.__name__: str = schema["function"]["name"]
        self.__signature__ = signature
        self._call = call

    async def __call__(self, **arguments: Any) -> Any:
        """Pass the call on."""
        return await self._call(self.__name__, arguments)
