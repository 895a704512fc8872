"""Numbers that one can check by hand, and what must hold for any."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo.evaluation.statistics import compare, mean_reward, pass_at_k

rewards = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=8)


def test_the_mean_is_over_prompts() -> None:
    assert mean_reward([[1.0, 0.0], [1.0, 1.0]]).value == 0.75


@pytest.mark.parametrize(("k", "expected"), [(1, 0.5), (2, 5 / 6), (3, 1.0)])
def test_pass_at_k_has_no_bias(k: int, expected: float) -> None:
    """Two of four samples pass: both missed by k draws with chance C(2, k) / C(4, k)."""
    assert pass_at_k([[1.0, 1.0, 0.0, 0.0]], k, 1.0).value == pytest.approx(expected)


@given(rewards)
def test_an_interval_holds_its_value_and_stays_in_range(scores: list[list[float]]) -> None:
    for found in (mean_reward(scores), pass_at_k(scores, 2, 1.0)):
        assert -1e-9 <= found.low <= found.high <= 1 + 1e-9
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9 or math.isclose(found.low, found.high)


@given(rewards)
def test_more_tries_never_pass_less(scores: list[list[float]]) -> None:
    passes = [pass_at_k(scores, k, 1.0).value for k in (1, 2, 3, 4)]
    assert passes == sorted(passes)


def test_a_clear_lead_is_significant_and_none_is_not() -> None:
    better, worse = [[1.0, 1.0]] * 12, [[0.0, 1.0]] * 12
    assert compare(better, worse).is_better(0.05)
    assert not compare(worse, better).is_better(0.05)
    assert not compare(better, better).is_better(0.05)


def test_a_lead_on_few_prompts_is_chance() -> None:
    found = compare([[1.0], [1.0]], [[0.0], [0.0]])
    assert found.difference.value == 1.0
    assert not found.is_better(0.05)
