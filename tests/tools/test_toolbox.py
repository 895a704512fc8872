import asyncio
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from agrpo.errors import BadInput
from agrpo.rollout.threads import CallOverran, Threads
from agrpo.tools.calls import ToolCall
from agrpo.tools.proxy import ProxyTool
from agrpo.tools.schemas import schema_of
from agrpo.tools.tally import ToolTally
from agrpo.tools.toolbox import Toolbox

HAPPENED: list[str] = []


def slow(name: str) -> str:
    """Take a moment."""
    time.sleep(0.02)
    HAPPENED.append(name)
    return name


async def quick(name: str) -> str:
    """Take none."""
    HAPPENED.append(name)
    return name


def table() -> dict[str, Any]:
    """Something else than text."""
    return {"é": [1, None]}


def fails(how: str) -> None:
    """Fail."""
    if how == "exit":
        sys.exit(3)
    if how == "cancel":
        raise asyncio.CancelledError
    raise ConnectionError("away") if how == "outage" else KeyError(how)


def hangs() -> None:
    """Never come back."""
    time.sleep(3600)


async def hangs_softly() -> None:
    """Never come back, but can be cancelled."""
    await asyncio.sleep(3600)


class Machine:
    def stall(self) -> None:
        """Never come back."""
        time.sleep(3600)


def ask(
    *calls: ToolCall, tools: tuple[Callable[..., Any], ...] = (slow, quick, table, fails), timeout_s: float = 5.0
) -> tuple[list[str], ToolTally]:
    tally = ToolTally()
    answers = asyncio.run(Toolbox(tools, Threads("do better"), timeout_s, tally).answer(calls))
    return answers, tally


def test_calls_of_one_message_run_in_its_order_sync_or_async() -> None:
    HAPPENED.clear()
    answers, tally = ask(ToolCall("slow", {"name": "a"}), ToolCall("quick", {"name": "b"}), ToolCall("table"))
    assert HAPPENED == ["a", "b"]
    assert answers == ["a", "b", '{"é": [1, null]}']
    assert [(use.name, use.failed) for use in tally.uses] == [("slow", False), ("quick", False), ("table", False)]
    assert tally.uses[0].seconds >= 0.02 and tally.num_calls_by_message == [3]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (ToolCall("sloow"), "Error: there is no tool 'sloow'; known tools: slow, quick, table, fails"),
        (ToolCall("", error="the call is not valid JSON"), "Error: the call is not valid JSON"),
        (ToolCall("slow"), "Error: wrong arguments for slow: missing a required argument: 'name'"),
        (ToolCall("table", {"x": 1}), "Error: wrong arguments for table: got an unexpected keyword argument 'x'"),
        (ToolCall("fails", {"how": "now"}), "Error: KeyError: 'now'"),
        (ToolCall("fails", {"how": "exit"}), "Error: RuntimeError: fails tried to exit: 3"),
        (ToolCall("fails", {"how": "cancel"}), "Error: RuntimeError: fails raised CancelledError"),
    ],
)
def test_what_goes_wrong_is_told_to_the_model(call: ToolCall, answer: str) -> None:
    """Fault 24."""
    answers, tally = ask(call, ToolCall("quick", {"name": "goes on"}))
    assert answers == [answer, "goes on"]
    assert (len(tally.uses), tally.num_failed) == (2, 1)
    assert tally.num_unknown == (call.name == "sloow")
    assert tally.raised == ({"fails"} if call.name == "fails" else set())


def test_an_outage_is_not_the_models_doing() -> None:
    """Fault 6."""
    with pytest.raises(ConnectionError) as raised:
        ask(ToolCall("fails", {"how": "outage"}))
    assert raised.value.__notes__ == ["in tool 'fails' called with {'how': 'outage'}"]


@pytest.mark.parametrize("tool", [hangs, hangs_softly])
def test_a_tool_that_hangs_is_given_up_and_the_rollout_goes_on(tool: Callable[..., Any]) -> None:
    """Fault 13."""
    answers, tally = ask(ToolCall(tool.__name__), ToolCall("table"), tools=(tool, table), timeout_s=0.05)
    assert answers[0] == "Error: no answer within 0.05 s" and len(answers) == 2
    assert tally.num_failed == 1


def test_a_method_that_hangs_takes_its_object_with_it() -> None:
    with pytest.raises(CallOverran):
        ask(ToolCall("stall"), tools=(Machine().stall,), timeout_s=0.05)


def test_a_process_that_does_not_start_is_not_the_models_doing() -> None:
    async def call(name: str, arguments: dict[str, Any]) -> None:
        raise BadInput("a process for table did not start; it must be importable")

    tool = ProxyTool(schema_of(table), inspect.signature(table), call, holds_state=False)
    with pytest.raises(BadInput, match="did not start"):
        ask(ToolCall("table"), tools=(tool,))


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(BadInput, match="two tools are called 'table'"):
        Toolbox([table, table], Threads(""), 1.0, ToolTally())
