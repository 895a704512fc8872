"""Between the OpenAI chat format and the messages of chat templates."""

import json
from typing import Any

from agrpo.records import Message
from agrpo.tools.reading import Reply


class BadRequest(ValueError):
    """A request wants, or holds, something that cannot be done; the message says what."""


def incoming(message: Any) -> Message:
    """A message as templates want it: text content, arguments of calls as objects. Raises BadRequest."""
    try:
        return _incoming(message)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"a message lacks or garbles {error!r}: {str(message)[:200]}") from None


def outgoing(reply: Reply, turn_number: int) -> dict[str, Any]:
    """The assistant's message of an answer; calls that cannot be run stay in its content."""
    calls = [
        {
            "id": f"call_{turn_number}_{position}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for position, call in enumerate(reply.calls)
        if call.error is None
    ]
    message = {"role": "assistant", "content": reply.message["content"]}
    return {**message, "tool_calls": calls} if calls else message


def fingerprint(message: Message) -> str:
    """The same for a message that an agent sends back and for the reply that it got."""
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", [])]
    return json.dumps([message["content"].strip(), calls], sort_keys=True)


def _incoming(message: dict[str, Any]) -> Message:
    role = "system" if message.get("role") == "developer" else message.get("role")
    if not isinstance(role, str):
        raise BadRequest(f"a message has role {role!r}; expected system, user, assistant or tool")
    calls = [_incoming_call(call) for call in message.get("tool_calls") or []]
    text: Message = {"role": role, "content": _text(message.get("content"))}
    text |= {name: message[name] for name in ("name", "reasoning_content") if name in message}
    return {**text, "tool_calls": calls} if calls else text


def _incoming_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    try:
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise BadRequest(f"arguments of a tool call are no JSON: {error}") from None
    return {"type": "function", "function": {"name": function["name"], "arguments": decoded}}


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part for part in content if part.get("type") == "text"]
    if len(parts) < len(content):
        raise BadRequest("a message holds something else than text; images and sounds cannot be trained on")
    return "".join(part["text"] for part in parts)
