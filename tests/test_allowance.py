import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo.allowance import GroupSize, admits, allowance_tokens, first_allowance, full_step_tokens


@pytest.mark.parametrize(("max_staleness", "expected"), [(0, 100), (1, 100), (4, 400)])
def test_a_step_allows_its_tokens_times_the_staleness(max_staleness: int, expected: int) -> None:
    assert allowance_tokens(100, max_staleness) == expected


@pytest.mark.parametrize(
    ("num_groups", "groups_per_step", "expected"), [(4, 8, 200), (8, 8, 100), (9, 8, 100), (4, None, 100), (0, 8, 100)]
)
def test_a_step_that_closed_short_does_not_keep_later_ones_short(num_groups, groups_per_step, expected) -> None:
    assert full_step_tokens(100, num_groups, groups_per_step) == expected


def test_before_the_first_step_every_row_is_assumed_full() -> None:
    assert first_allowance(token_budget=512, num_processes=2, gradient_accumulation_steps=3, max_staleness=4) == 12288


def test_one_group_at_a_time_until_the_first_is_complete() -> None:
    assert admits(allowance=1000, pending_tokens=0, num_groups_in_flight=0, group_tokens=None)
    assert not admits(allowance=1000, pending_tokens=0, num_groups_in_flight=1, group_tokens=None)


def test_groups_of_other_workers_count_once_a_workers_own_size_is_known() -> None:
    assert admits(allowance=1000, pending_tokens=500, num_groups_in_flight=1, group_tokens=100.0, num_elsewhere=3)
    assert not admits(allowance=1000, pending_tokens=500, num_groups_in_flight=1, group_tokens=100.0, num_elsewhere=4)
    assert admits(allowance=1000, pending_tokens=0, num_groups_in_flight=0, group_tokens=None, num_elsewhere=9)


def test_groups_start_while_holdings_are_under_the_limit() -> None:
    assert admits(allowance=1000, pending_tokens=500, num_groups_in_flight=4, group_tokens=100.0)
    assert not admits(allowance=1000, pending_tokens=500, num_groups_in_flight=5, group_tokens=100.0)
    assert not admits(allowance=0, pending_tokens=0, num_groups_in_flight=0, group_tokens=None)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_holdings_never_exceed_the_allowance_by_more_than_one_group(allowance: int, sizes: list[int]) -> None:
    pending, size = 0, GroupSize()
    for tokens in sizes:
        if admits(allowance, pending, 0, size.mean):
            pending += tokens
            size.add(tokens)
    assert pending < allowance + max(sizes)
