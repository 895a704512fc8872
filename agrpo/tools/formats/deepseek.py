"""DeepSeek-V3's special tokens around a name and fenced or plain JSON arguments."""

import re

from agrpo.tools.calls import Parsed, Schema, with_arguments

# Its tokens are written with a wide bar and a low block instead of | and _.
_BAR, _GAP = "\uff5c", "\u2581"


def _token(*words: str) -> str:
    return f"<{_BAR}{_GAP.join(words)}{_BAR}>"


MARK = _token("tool", "call", "begin")
_CALL = re.compile(
    rf"{MARK}(?:function{_token('tool', 'sep')})?(?P<name>[^\n<]*)(?:\n```json\n|{_token('tool', 'sep')})"
    rf"(?P<arguments>.*?)(?:\n```)?(?:{_token('tool', 'call', 'end')}|\Z)",
    re.DOTALL,
)
_AROUND = re.compile(f"{_token('tool', 'calls', 'begin')}|{_token('tool', 'calls', 'end')}")


def parse(text: str, schemas: list[Schema]) -> Parsed:
    """Take the calls and what encloses them out of a message."""
    calls = [
        with_arguments(found["name"].strip(), found["arguments"].strip(), found[0]) for found in _CALL.finditer(text)
    ]
    if not calls:
        return Parsed(text, [])
    return Parsed(_AROUND.sub("", _CALL.sub("", text)).strip(), calls)
