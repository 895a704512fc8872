"""<tool_call>{"name": ..., "arguments": ...}</tool_call>: Qwen2.5, Qwen3, SmolLM2 (a list inside) and SmolLM3."""

import re
from collections.abc import Callable

from agrpo.tools.calls import Parsed, Schema, ToolCall, calls_in

# A block that is never closed is a call that was cut.
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def parse(text: str, schemas: list[Schema]) -> Parsed:
    """Take the blocks out of a message."""
    return parse_blocks(text, lambda block: calls_in(block.strip()))


def parse_blocks(text: str, read: Callable[[str], list[ToolCall]]) -> Parsed:
    """Take the blocks out of a message, whatever is written in them."""
    calls = [call for block in _BLOCK.findall(text) for call in read(block)]
    return Parsed(_BLOCK.sub("", text).strip() if calls else text, calls)
