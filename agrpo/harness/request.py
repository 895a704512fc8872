"""What a request to the endpoint asks for, and which wishes are refused."""

from dataclasses import dataclass
from typing import Any

from agrpo.harness.messages import BadRequest, incoming
from agrpo.records import Message
from agrpo.tools.calls import Schema

# An agent that relies on one of these must not believe that it got it. How to sample (temperature and the like) is the
# training's to say, and is left out of account.
_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((None, 1), "one completion at a time is recorded"),
    "stop": ((None, "", []), "a turn ends where the model ends it"),
    "tool_choice": ((None, "auto", "none"), "the model itself chooses what it calls"),
    "response_format": ((None, {"type": "text"}), "what the model writes is not forced into a form"),
    "parallel_tool_calls": ((None, True), "the model itself chooses how many calls it makes"),
    "functions": ((None, []), "give `tools`"),
    "logprobs": ((None, False), "log-probabilities are recorded, and not sent"),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request, read."""

    messages: list[Message]
    tools: list[Schema]
    max_tokens: int | None
    stream: bool
    usage_in_stream: bool


def read_request(body: Any) -> ChatRequest:
    """The request in a decoded body. Raises BadRequest for what cannot be done."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise BadRequest("messages: expected a list of messages")
    for name, (accepted, why) in _ONLY.items():
        if body.get(name) not in accepted:
            raise BadRequest(f"{name}={str(body[name])[:100]}: {why}")
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(_is_tool(tool) for tool in tools):
        raise BadRequest("tools: expected a list of functions with names")
    return ChatRequest(
        messages=[incoming(message) for message in body["messages"]],
        tools=[] if body.get("tool_choice") == "none" else [_schema(tool) for tool in tools],
        max_tokens=_max_tokens(body),
        stream=bool(body.get("stream")),
        usage_in_stream=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("parameters") or {}, dict)
    )


def _schema(tool: Schema) -> Schema:
    """The tool with parameters, which may be left out where there are none; templates and parsers look for them."""
    parameters = {"type": "object", "properties": {}, **(tool["function"].get("parameters") or {})}
    return {**tool, "function": {**tool["function"], "parameters": parameters}}


def _max_tokens(body: dict[str, Any]) -> int | None:
    given = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    if any(not isinstance(number, int) or number < 1 for number in given):
        raise BadRequest(f"max_tokens={given[0]}: expected a whole number, at least 1")
    return min(given, default=None)
