"""{"name": ..., "parameters": ...} as the whole message, after <|python_tag|> or not: Llama 3.1 to 3.3."""

import json

from agrpo.tools.calls import MALFORMED, MAX_CHARS, Parsed, Schema, ToolCall, call_of, calls_in

_TAG = "<|python_tag|>"


def parse(text: str, schemas: list[Schema]) -> Parsed:
    """A message that is nothing but calls, one after the other or divided by semicolons; any other is content."""
    tagged = _TAG in text
    before, _, body = text.partition(_TAG) if tagged else ("", "", text)
    body = body.strip()
    if not tagged and not (body.startswith("{") and '"name"' in body):
        return Parsed(text, [])
    if len(body) > MAX_CHARS:
        return Parsed(before.strip(), calls_in(body))
    return Parsed(before.strip(), _calls(body))


def _calls(body: str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    rest = body
    while rest:
        try:
            entry, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError) as error:
            return [*calls, ToolCall("", error=f"{MALFORMED}: {error}", text=rest)]
        calls.append(call_of(entry, rest[:end]))
        rest = rest[end:].lstrip(" \t\r\n;")
    return calls
