import pytest

from agrpo.records import TurnRecord
from agrpo.rollout.gauges import Gauges
from agrpo.rollout.stats import duplicate_frac


def turns(*outputs: list[int]) -> list[TurnRecord]:
    return [TurnRecord([1], output, [-0.5] * len(output)) for output in outputs]


def test_duplicates_repeat_an_earlier_rollout_over_all_turns() -> None:
    assert duplicate_frac([turns([2], [3])] * 4) == 0.75
    assert duplicate_frac([turns([2, 3]), turns([2], [3]), turns([2], [4]), turns([2, 3])]) == 0.25


def test_a_window_holds_means_of_readings_and_sums_of_counts() -> None:
    gauges = Gauges()
    for value in (1.0, 3.0):
        gauges.read("concurrency", value)
    gauges.count("failed_count")
    gauges.count("failed_count")
    gauges.total("retry_count", 5)
    gauges.total("retry_count", 7)
    assert gauges.take() == {"concurrency": 2.0, "failed_count": 2.0, "retry_count": 7.0}
    gauges.total("retry_count", 8)
    assert gauges.take() == {"retry_count": 1.0}
    gauges.total("retry_count", 2)
    assert gauges.take() == pytest.approx({"retry_count": 2.0})
