import asyncio
import functools

import pytest

from agrpo.errors import BadInput
from agrpo.tools.schemas import describe_in_text, name_of, schema_of


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def wait(seconds: float) -> None:
    """Waits.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)


class Counter:
    def add(self, step: int = 1) -> int:
        return step


def bare(a, b):  # type: ignore[no-untyped-def]
    """Adds.

    Args:
        a: One.
        b: Another.
    """


def test_hints_and_docstring_become_a_schema() -> None:
    function = schema_of(multiply)["function"]
    assert (function["name"], function["description"]) == ("multiply", "Multiplies two integers.")
    assert function["parameters"]["properties"]["b"] == {"type": "integer", "description": "The second integer."}
    assert function["parameters"]["required"] == ["a", "b"]
    assert name_of(wait) == "wait"


def test_a_method_without_docstring_is_described_by_its_signature() -> None:
    function = schema_of(Counter().add)["function"]
    assert function == schema_of(Counter.add)["function"]
    assert function["parameters"]["properties"] == {"step": {"type": "integer", "description": "step"}}
    assert "required" not in function["parameters"]


def test_what_cannot_be_described_is_named() -> None:
    with pytest.raises(BadInput, match=r"tool 'bare' cannot be described to the model: Argument a is missing"):
        schema_of(bare)
    with pytest.raises(BadInput, match="has no name to call it by"):
        schema_of(functools.partial(multiply, 2))


def test_tools_go_into_the_system_message_where_the_template_knows_none() -> None:
    user = {"role": "user", "content": "2*3?"}
    (system, kept) = describe_in_text([user], [schema_of(multiply)])
    assert kept == user and '"name": "multiply"' in system["content"] and "<tool_call>" in system["content"]
    (system, kept) = describe_in_text([{"role": "system", "content": "Be brief."}, user], [schema_of(multiply)])
    assert system["content"].startswith("Be brief.\n\n# Tools") and kept == user
