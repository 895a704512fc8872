"""A run that is over is not begun again by a heartbeat that came late; a run that died is, but not for ever."""

from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.schemas.objects import State, StateType

from flows.again import overtaken, used_up
from flows.automations import DIED, SILENT

SCHEDULED, RUNNING, CRASHED = StateType.SCHEDULED, StateType.RUNNING, StateType.CRASHED
Said = tuple[StateType, str]


def states(*said: Said) -> list[State]:
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
    found = overtaken(states((before, ""), (SCHEDULED, SILENT), (RUNNING, "")))
    assert (found is not None and found.type == before) is wrong


def test_a_person_may_begin_a_cancelled_run_again() -> None:
    assert overtaken(states((StateType.CANCELLED, ""), (SCHEDULED, "Retry"), (RUNNING, ""))) is None


def test_a_person_may_do_so_after_silence_tried_by_mistake() -> None:
    mistake = ((StateType.CANCELLED, ""), (SCHEDULED, SILENT), (RUNNING, ""), (StateType.CANCELLED, ""))
    assert overtaken(states(*mistake, (SCHEDULED, "Retry"), (RUNNING, ""))) is None


ONCE: list[Said] = [(SCHEDULED, ""), (RUNNING, "")]
REPORTED_TWICE: list[Said] = [(CRASHED, ""), (SCHEDULED, DIED), (CRASHED, ""), (SCHEDULED, DIED), (RUNNING, "")]
FELL_SILENT: list[Said] = [(SCHEDULED, SILENT), (RUNNING, "")]
BY_A_PERSON: list[Said] = [(CRASHED, ""), (SCHEDULED, "Retry"), (RUNNING, "")]


@pytest.mark.parametrize(
    ("said", "too_often"),
    [
        (ONCE, False),
        (ONCE + REPORTED_TWICE + FELL_SILENT, False),
        (ONCE + REPORTED_TWICE + FELL_SILENT + REPORTED_TWICE, True),
        (ONCE + REPORTED_TWICE + FELL_SILENT + BY_A_PERSON, False),
        (ONCE + BY_A_PERSON * 9, False),
        (ONCE + [(RUNNING, "")] * 5, False),
    ],
)
def test_what_dies_again_and_again_ends_as_failed(said: list[Said], too_often: bool) -> None:
    found = used_up(states(*said), 3)
    assert (found is not None and found.is_failed() and "died in 3 attempts" in str(found.message)) is too_often
