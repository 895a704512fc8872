"""Missed nights do not pile up."""

from datetime import UTC, datetime, timedelta

import pytest

from flows.nightly import is_missed

NOW = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("tags", "hours_late", "run_count", "missed"),
    [
        (["agrpo", "auto-scheduled"], 6.0, 1, True),
        (["agrpo", "auto-scheduled"], 0.1, 1, False),
        (["agrpo", "auto-scheduled"], 6.0, 2, False),  # begun in time, crashed, begun again
        (["agrpo"], 6.0, 1, False),  # a person's, that waited for a worker
    ],
)
def test_only_a_scheduled_night_that_comes_late_is_missed(
    tags: list[str], hours_late: float, run_count: int, missed: bool
) -> None:
    assert is_missed(tags, NOW - timedelta(hours=hours_late), run_count, NOW) is missed
