"""A tool call as the model wrote it."""

import json
from dataclasses import dataclass, field
from typing import Any

MAX_CHARS = 1_000_000
"""Longest call that is read; whatever is longer is a runaway."""
MALFORMED = "the call is not valid JSON"

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `error` says what is wrong with one that cannot be run."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    text: str = ""
    """As written, for calls with an error."""

    def as_message(self) -> dict[str, Any]:
        """The entry of a message's `tool_calls`."""
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Parsed:
    """An assistant's message taken apart."""

    content: str
    """What is no call."""
    calls: list[ToolCall]
    """In the order in which the model wrote them."""


def calls_in(text: str) -> list[ToolCall]:
    """Calls of a JSON text: an object with a name and arguments (or parameters), or a list of them."""
    if len(text) > MAX_CHARS:
        return [ToolCall("", error=f"the call has {len(text)} characters; at most {MAX_CHARS} are read", text=text)]
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [ToolCall("", error=f"{MALFORMED}: {error}", text=text)]
    return [call_of(entry, text) for entry in (given if isinstance(given, list) and given else [given])]


def call_of(entry: Any, text: str) -> ToolCall:
    """One call of decoded JSON; `text` is what the model wrote."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return ToolCall("", error='a call is a JSON object with "name" and "arguments"', text=text)
    arguments = entry["arguments"] if "arguments" in entry else entry.get("parameters", {})
    return with_arguments(entry["name"], arguments, text)


def with_arguments(name: str, arguments: Any, text: str) -> ToolCall:
    """A call of this name; arguments that are themselves JSON text are decoded."""
    if isinstance(arguments, str):
        if len(arguments) > MAX_CHARS:
            return ToolCall(name, error=f"the arguments have more than {MAX_CHARS} characters", text=text)
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(name, error=f"the arguments are not valid JSON: {error}", text=text)
    if not isinstance(arguments, dict):
        kind = "null" if arguments is None else type(arguments).__name__
        return ToolCall(name, error=f"the arguments are a JSON object, not {kind}", text=text)
    return ToolCall(name, arguments)
