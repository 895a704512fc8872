"""Running the calls of one rollout: whatever goes wrong in a call is told to the model."""

import inspect
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from agrpo.errors import BadInput
from agrpo.rollout.child import ChildBug, ChildDied
from agrpo.rollout.outages import is_outage
from agrpo.rollout.threads import CallOverran, Threads, is_async
from agrpo.tools.calls import Schema, ToolCall
from agrpo.tools.proxy import ProxyTool
from agrpo.tools.schemas import name_of, schema_of
from agrpo.tools.tally import ToolTally, ToolUse

Tool = Callable[..., Any]
MAX_ERROR_CHARS = 2000


class Toolbox:
    """The tools that a rollout may call, by name. Raises BadInput for two of one name."""

    def __init__(self, tools: Sequence[Tool], threads: Threads, timeout_s: float, tally: ToolTally) -> None:
        self.schemas: list[Schema] = [schema_of(tool) for tool in tools]
        self._tools = by_name(tools)
        self._threads = threads
        self._timeout_s = timeout_s
        self._tally = tally

    async def answer(self, calls: Sequence[ToolCall]) -> list[str]:
        """What the model reads for the calls of one message, run one after the other in its order.

        Raises an outage as it is, and CallOverran when a method hangs, as its object cannot be used any more.
        """
        self._tally.num_calls_by_message.append(len(calls))
        return [await self._answer(call) for call in calls]

    async def _answer(self, call: ToolCall) -> str:
        if call.error is not None:
            return self._refuse(call.name if call.name in self._tools else None, call.error)
        if call.name not in self._tools:
            self._tally.num_unknown += 1
            known = ", ".join(self._tools) or "none"
            return self._refuse(None, f"there is no tool {call.name[:100]!r}; known tools: {known}")
        begin = time.monotonic()
        text, failed = await self._run(call)
        self._tally.uses.append(ToolUse(call.name, time.monotonic() - begin, failed))
        return text

    def _refuse(self, name: str | None, words: str) -> str:
        self._tally.uses.append(ToolUse(name, 0.0, True))
        return _error(words)

    async def _run(self, call: ToolCall) -> tuple[str, bool]:
        tool = self._tools[call.name]
        try:
            inspect.signature(tool).bind(**call.arguments)
        except TypeError as error:
            return _error(f"wrong arguments for {call.name}: {error}"), True
        try:
            return as_text(await self._call(tool, call.arguments)), False
        except BadInput:  # too many hang, or a process does not start
            raise
        except Exception as error:
            words = self._words(tool, error)
            if words is None:
                error.add_note(f"in tool {call.name!r} called with {str(call.arguments)[:500]}")
                raise
            self._tally.raised.add(call.name)
            return _error(words), True

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        if isinstance(tool, ProxyTool):  # it keeps its own limit, which does not count the wait for a free process
            return await tool(**arguments)
        return await self._threads.run(tool, arguments, self._timeout_s)

    def _words(self, tool: Tool, error: BaseException) -> str | None:
        """What the model is told of an error; None for one that is not the model's doing."""
        if isinstance(error, CallOverran) and not _holds_state(tool):
            return f"no answer within {self._timeout_s:g} s"
        if isinstance(error, ChildDied) and not _holds_state(tool):
            return f"the process of {name_of(tool)} died"
        if is_outage(error):
            return None
        return error.summary if isinstance(error, ChildBug) else f"{type(error).__name__}: {error}"


def by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """The tools under their names. Raises BadInput for two of one name."""
    named: dict[str, Tool] = {}
    for tool in tools:
        name = name_of(tool)
        if name in named:
            raise BadInput(f"two tools are called {name!r}; rename one, as the model calls them by name")
        named[name] = tool
    return named


def as_text(value: Any) -> str:
    """A tool's answer as the model reads it: text as it is, anything else as JSON where it can be."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _holds_state(tool: Tool) -> bool:
    """Whether a call that did not end well was at work inside an object that the rollout needs."""
    if isinstance(tool, ProxyTool):
        return tool.holds_state
    return inspect.ismethod(tool) and not is_async(tool)


def _error(words: str) -> str:
    return f"Error: {words}"[:MAX_ERROR_CHARS]
