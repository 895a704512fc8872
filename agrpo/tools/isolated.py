"""The trainer's tools as rollouts get them: those that are marked for it run in processes of their own."""

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from agrpo.rollout.isolation import IsolatedFunctions, wants_process
from agrpo.tools.proxy import ProxyTool
from agrpo.tools.schemas import name_of, schema_of

MIN_PROCESSES = 4


class IsolatedTools:
    """Stands for the marked tools; a call waits for a free process, which may be twice as many as cores."""

    def __init__(self, tools: Sequence[Callable[..., Any]], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        marked = {name_of(tool): tool for tool in tools if wants_process(tool)}
        self._processes = IsolatedFunctions(marked, max(MIN_PROCESSES, 2 * (os.cpu_count() or 1)))
        self.tools = [self._proxy(tool) if wants_process(tool) else tool for tool in tools]
        """All of them, in order."""

    def close(self) -> None:
        """End the processes."""
        self._processes.close()

    def _proxy(self, tool: Callable[..., Any]) -> ProxyTool:
        return ProxyTool(schema_of(tool), inspect.signature(tool), self._call, holds_state=False)

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        return await self._processes.call(name, arguments, self._timeout_s)
