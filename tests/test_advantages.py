import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo.advantages import check_advantages, group_advantages, has_signal, total_rewards
from agrpo.errors import BadInput

NAN = float("nan")
thousandths = st.integers(-(10**6), 10**6).map(lambda number: number / 1000)
"""Rewards that differ only in their last bit would be scaled up to noise."""
rewards = st.lists(st.one_of(st.just(NAN), thousandths), min_size=1, max_size=12).map(np.array)


def test_rewards_are_standardised_with_the_population_deviation() -> None:
    advantages = group_advantages(np.array([1.0, 0.0, 0.0, 1.0]))
    assert advantages == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-7)
    three = group_advantages(np.array([0.0, 1.0, 2.0]))
    expected = 1.0 / (math.sqrt(2.0 / 3.0) + 1e-8)
    assert three == pytest.approx([-expected, 0.0, expected], abs=1e-12)


def test_an_unscored_rollout_is_left_out_and_gets_zero() -> None:
    assert group_advantages(np.array([1.0, NAN, 3.0])) == pytest.approx([-1.0, 0.0, 1.0], abs=1e-7)


@pytest.mark.parametrize("values", [[0.7] * 6, [NAN, NAN], [NAN, 1.0], [2.0], [NAN, 0.7, 0.7]])
def test_groups_without_signal(values: list[float]) -> None:
    assert not has_signal(np.array(values))
    assert group_advantages(np.array(values)).tolist() == [0.0] * len(values)


@given(rewards)
def test_advantages_of_a_group_are_finite_and_sum_to_zero(values: np.ndarray) -> None:
    advantages = group_advantages(values)
    assert np.isfinite(advantages).all()
    assert abs(advantages.sum()) < 1e-6
    assert (advantages[np.isnan(values)] == 0).all()


def test_sources_are_summed_and_none_is_never_zero() -> None:
    totals = total_rewards([[1.0, None, None], [0.5, 2.0, None]], 3)
    assert totals[:2].tolist() == [1.5, 2.0]
    assert math.isnan(totals[2])


@pytest.mark.parametrize("values", [[1.0], [1.0, NAN], [[1.0, 2.0]]])
def test_what_an_overridden_hook_returns_is_checked(values: list[float]) -> None:
    with pytest.raises(BadInput, match="one per rollout"):
        check_advantages(np.array(values), 2)
