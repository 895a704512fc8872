"""<tool_call><function=name><parameter=key>value</parameter></function></tool_call>: Qwen3-Coder and Qwen3.5 on."""

import json
import re
from typing import Any

from agrpo.tools.calls import Parsed, Schema, ToolCall
from agrpo.tools.formats.hermes import parse_blocks

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def parse(text: str, schemas: list[Schema]) -> Parsed:
    """Take the blocks out of a message; values become what the tool's schema says they are."""
    return parse_blocks(text, lambda block: [_call(block, schemas)])


def _call(block: str, schemas: list[Schema]) -> ToolCall:
    found = _FUNCTION.fullmatch(block)
    if found is None:
        return ToolCall("", error="a call is <function=name> with <parameter=key> elements, closed", text=block)
    name = found[1]
    functions = [schema["function"] for schema in schemas if schema["function"]["name"] == name]
    kinds = functions[0]["parameters"]["properties"] if functions else {}
    return ToolCall(name, {key: _value(value, kinds.get(key, {})) for key, value in _PARAMETER.findall(found[2])})


def _value(text: str, kind: Any) -> Any:
    """Text stays text; anything else is JSON where it can be read as such."""
    if isinstance(kind, dict) and kind.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
