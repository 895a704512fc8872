"""The aggregation rule of the window."""

import math

import pytest

from agrpo.metrics import Window, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rollout/vllm_retry_count", "count"),
        ("tools/add/call_count", "count"),
        ("account", "mean"),  # a word, not a part of one
        ("completions/max_length", "max"),
        ("clip_ratio/high_max", "max"),
        ("sampling/importance_sampling_ratio/min", "min"),
        ("completions/mean_terminated_length", "mean"),
        ("max/entropy", "mean"),  # only the last part counts
        ("batch/samples_per_step", "mean"),
    ],
)
def test_the_name_gives_the_rule(name, kind):
    assert kind_of(name) == kind


def test_each_rule():
    window = Window()
    window.add_all("a_count", [1, 2])
    window.add_all("a_max", [1, 5, 2])
    window.add_all("a_min", [3, 1, 2])
    window.add_all("a", [1, 2, 6])
    assert window.values() == {"a_count": 3, "a_max": 5, "a_min": 1, "a": 3}


def test_means_are_weighted_and_nan_is_no_value():
    window = Window()
    window.add("entropy", 1.0, weight=100)
    window.add("entropy", 3.0, weight=300)
    window.add("entropy", math.nan, weight=300)
    window.add("nothing", math.nan)
    assert window.values() == {"entropy": 2.5}


def test_a_rate_is_total_over_total():
    window = Window()
    window.add_rate("tokens_per_s", 100, 1)
    window.add_rate("tokens_per_s", 100, 3)
    assert window.values() == {"tokens_per_s": 50}


def test_windows_of_two_processes_merge():
    one, two = Window(), Window()
    one.add("a", 1.0, weight=1)
    two.add("a", 4.0, weight=2)
    two.add("b_max", 7)
    one.add("c_count", 1)
    two.add("c_count", 2)
    one.merge(two)
    assert one.values() == {"a": 3, "b_max": 7, "c_count": 3}
    assert two.values()["a"] == 4
