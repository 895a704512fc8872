"""Tools that are marked for it run in processes, which are used again, ended when they hang and replaced."""

import asyncio
import multiprocessing
import os
import sys
import time

import pytest

from agrpo import isolated
from agrpo.errors import Outage
from agrpo.rollout.threads import Threads
from agrpo.tools.calls import ToolCall
from agrpo.tools.isolated import IsolatedTools
from agrpo.tools.tally import ToolTally
from agrpo.tools.toolbox import Toolbox

LIMIT_S = 2.0


@isolated
def work(how: str = "well") -> int:
    """Do something.

    Args:
        how: In which way.
    """
    if how == "dying":
        os._exit(9)
    if how == "hanging":
        time.sleep(3600)
    if how == "badly":
        raise ValueError("what a day")
    if how == "exiting":
        sys.exit(2)
    if how == "away":
        raise ConnectionResetError("no network")
    return os.getpid()


def plain() -> int:
    """The process that this runs in."""
    return os.getpid()


def test_what_goes_wrong_in_a_process_is_told_to_the_model_and_the_rollout_goes_on() -> None:
    """Faults 13 and 24."""

    async def run() -> list[str]:
        tools = IsolatedTools([plain, work], LIMIT_S)
        toolbox = Toolbox(tools.tools, Threads("no thread hangs"), 0.001 + LIMIT_S, ToolTally())
        ways = ("well", "badly", "exiting", "well", "dying", "well", "hanging", "well")
        try:
            assert multiprocessing.active_children() == []
            answers = await toolbox.answer([ToolCall("plain"), *(ToolCall("work", {"how": how}) for how in ways)])
            assert len(multiprocessing.active_children()) == 1
            with pytest.raises(Outage, match="no network"):
                await toolbox.answer([ToolCall("work", {"how": "away"})])
            return answers
        finally:
            tools.close()

    here, first, bad, exiting, again, died, second, hung, third = asyncio.run(run())
    assert int(here) == os.getpid() and first == again
    assert len({here, first, second, third}) == 4
    assert bad == "Error: ValueError: what a day" and exiting == "Error: SystemExit: 2"
    assert died == "Error: the process of work died" and hung == "Error: no answer within 2.001 s"
    assert multiprocessing.active_children() == []


def test_calls_at_the_same_time_have_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agrpo.tools.isolated.MIN_PROCESSES", 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)

    async def run() -> list[str]:
        tools = IsolatedTools([work], LIMIT_S)
        toolbox = Toolbox(tools.tools, Threads(""), LIMIT_S, ToolTally())
        try:
            found = await asyncio.gather(*(toolbox.answer([ToolCall("work")]) for _ in range(6)))
        finally:
            tools.close()
        return [answer for (answer,) in found]

    assert len(set(asyncio.run(run()))) == 2


def test_the_model_is_told_the_same_of_an_isolated_tool() -> None:
    tools = IsolatedTools([work], LIMIT_S)
    (schema,) = Toolbox(tools.tools, Threads(""), LIMIT_S, ToolTally()).schemas
    assert schema["function"]["name"] == "work" and schema["function"]["description"] == "Do something."
    assert schema["function"]["parameters"]["properties"]["how"]["description"] == "In which way."
