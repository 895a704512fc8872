"""A run that is over is not begun again by a heartbeat that came late; a run that died is."""

from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.schemas.objects import State, StateType

from flows.again import overtaken
from flows.automations import SILENT


def states(*said: tuple[StateType, str]) -> list[State]:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    made = [
        State(type=kind, message=message, timestamp=begun + timedelta(seconds=at))
        for at, (kind, message) in enumerate(said)
    ]
    return made[::-1]


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        (StateType.CANCELLED, True),
        (StateType.COMPLETED, True),
        (StateType.FAILED, True),
        (StateType.CRASHED, False),
        (StateType.RUNNING, False),
    ],
)
def test_what_was_over_stays_over(before: StateType, wrong: bool) -> None:
    found = overtaken(states((before, ""), (StateType.SCHEDULED, SILENT), (StateType.RUNNING, "")))
    assert (found is not None and found.type == before) is wrong


def test_a_person_may_begin_a_cancelled_run_again() -> None:
    assert overtaken(states((StateType.CANCELLED, ""), (StateType.SCHEDULED, "Retry"), (StateType.RUNNING, ""))) is None
