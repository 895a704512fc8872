"""What the model is told of a tool: a JSON schema from type hints and a Google-style docstring."""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, get_type_hints

from agrpo.errors import BadInput
from agrpo.records import Message
from agrpo.tools.calls import Schema
from agrpo.tools.proxy import ProxyTool

_INTRODUCTION = """# Tools

You may call these functions:
<tools>
{tools}
</tools>

To call one, write a JSON object with its name and arguments between tags, for example:
<tool_call>
{{"name": "function", "arguments": {{"key": "value"}}}}
</tool_call>"""


def schema_of(tool: Callable[..., Any]) -> Schema:
    """The schema of a function or method. Raises BadInput naming a tool without type hints or with a lame docstring."""
    if isinstance(tool, ProxyTool):
        return tool.schema
    return _schema_of(tool.__func__ if inspect.ismethod(tool) else tool)


def name_of(tool: Callable[..., Any]) -> str:
    """The name under which the model calls a tool."""
    name: str = schema_of(tool)["function"]["name"]
    return name


def describe_in_text(messages: list[Message], schemas: Sequence[Schema]) -> list[Message]:
    """The messages with the tools described in the system message, for chat templates that know no tools."""
    text = _introduction(schemas)
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def describe_to_user(messages: list[Message], schemas: Sequence[Schema]) -> list[Message]:
    """The same for templates that know only user and assistant, in turn: the user describes the tools and answers."""
    told: list[Message] = [{"role": "user", "content": _introduction(schemas)}]
    for message in messages:
        if message["role"] == "tool":
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        if message["role"] == "user" == told[-1]["role"]:
            told[-1] = {"role": "user", "content": f"{told[-1]['content']}\n\n{message['content']}"}
        else:
            told.append(message)
    return told


def _introduction(schemas: Sequence[Schema]) -> str:
    return _INTRODUCTION.format(tools="\n".join(json.dumps(schema) for schema in schemas))


@lru_cache(maxsize=1024)
def _schema_of(function: Callable[..., Any]) -> Schema:
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    if not inspect.isroutine(function) or not hasattr(function, "__name__"):
        raise BadInput(f"tool {function!r:.100} has no name to call it by; write a function with def")
    try:
        return get_json_schema(function)
    except DocstringParsingException:
        return get_json_schema(_without_words(function))
    except (TypeHintParsingException, NameError, TypeError) as error:
        raise BadInput(
            f"tool {function.__name__!r} cannot be described to the model: {error}; give every argument a type hint "
            "and describe it in a Google-style docstring"
        ) from None


def _without_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in of the same signature, described only by its first line and the names of its arguments."""

    def stand_in() -> None:
        """Never called: it only carries a signature."""

    names = [name for name in inspect.signature(function).parameters if name != "self"]
    first_line = (inspect.getdoc(function) or function.__name__).splitlines()[0]
    arguments = "".join(f"\n    {name}: {name}" for name in names)
    stand_in.__name__ = function.__name__
    stand_in.__doc__ = f"{first_line}\n\nArgs:{arguments}"
    stand_in.__annotations__ = get_type_hints(function)
    stand_in.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return stand_in
