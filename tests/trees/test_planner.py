import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.trees import Limits, Sample, StepPlan, pack, plan_step
from tests.worlds import forest


def fresh(sample_id: int, group_id: int, size: int, num_trained: int = 1) -> Sample:
    """A sample that shares nothing."""
    return Sample.of(sample_id, group_id, 1000 * sample_id + np.arange(size), num_trained)


def ids(plan: StepPlan) -> list[list[list[int]]]:
    return [[[sample.sample_id for sample in row] for row in batch] for batch in plan.micro_batches]


def test_a_group_stays_together_and_groups_go_to_the_least_load() -> None:
    samples = [fresh(number, group, 10 if group == 1 else 5) for number, group in enumerate([1, 2, 1, 2, 3])]
    assert ids(plan_step(samples, Limits(2, 1, 100))) == [[[0, 2], [1, 3, 4]]]


def test_a_group_overflows_into_an_empty_row_and_then_closes() -> None:
    plan = plan_step([fresh(number, 1, 10) for number in range(5)], Limits(2, 1, 25))
    assert ids(plan) == [[[0, 1], [2, 3]]]
    assert plan.complete


def test_a_full_group_overflows_only_below_the_busiest_row() -> None:
    below = [fresh(0, 1, 30), fresh(1, 2, 25), fresh(2, 1, 4)]
    assert ids(plan_step(below, Limits(2, 2, 30))) == [[[0], [1, 2]]]
    above = [fresh(0, 1, 30), fresh(1, 2, 28), fresh(2, 1, 12)]
    assert ids(plan_step(above, Limits(2, 2, 40))) == [[[0], [1]], [[2], []]]


def test_loss_terms_count_against_the_budget_too() -> None:
    repeats = [Sample.of(number, 1, np.array([1, 2, 3, 4]), 6) for number in range(2)]
    assert ids(plan_step(repeats, Limits(1, 2, 10))) == [[[0]], [[1]]]


def test_unique_tokens_are_what_fills_a_row() -> None:
    rollouts = [Sample.of(number, 1, np.array([7] * 20 + [number]), 1) for number in range(5)]
    assert ids(plan_step(rollouts, Limits(1, 2, 19 + 4 * 2))) == [[[0, 1, 2, 3]], [[4]]]


def test_what_no_row_can_hold_is_the_callers_mistake() -> None:
    limits = Limits(2, 1, 10)
    assert not limits.allow(fresh(7, 1, 11)) and limits.allow(fresh(7, 1, 10))
    assert not limits.allow(fresh(7, 1, 3, num_trained=11))
    with pytest.raises(ValueError, match="sample 7 has 11 tokens"):
        plan_step([fresh(7, 1, 11)], Limits(2, 2, 10))


def test_groups_per_step_ends_a_step_and_spreads_it_over_the_ranks() -> None:
    samples = [fresh(number, number // 8, 10) for number in range(16)]
    plan = plan_step(samples, Limits(4, 1, 1000, groups_per_step=1))
    assert [len(row) for row in ids(plan)[0]] == [2, 2, 2, 2]
    assert sorted(number for row in ids(plan)[0] for number in row) == list(range(8))
    assert plan.complete
    assert plan_step(samples[:8], Limits(4, 1, 1000, groups_per_step=1)).complete  # nobody waits for another group


def test_a_step_of_groups_takes_as_many_micro_batches_as_they_need() -> None:
    samples = [fresh(number, group, 4) for number, group in enumerate([1, 1, 2, 2, 2, 3])]
    plan = plan_step(samples, Limits(1, 2, 8, groups_per_step=2))
    assert ids(plan) == [[[0, 1]], [[2, 3]], [[4]]]
    assert plan.complete
    assert not plan_step(samples[:2], Limits(1, 2, 8, groups_per_step=2)).complete


def test_without_enough_samples_a_step_stays_open() -> None:
    assert not plan_step([fresh(0, 1, 5)], Limits(1, 1, 10)).complete
    assert plan_step([], Limits(1, 1, 10)) == StepPlan((), False)


@settings(deadline=None)
@given(forest.forests(), st.lists(st.integers(0, 3), min_size=30, max_size=30), st.integers(1, 4), st.integers(8, 60))
def test_every_sample_lands_once_within_budget(
    samples: list[forest.Sample], groups: list[int], num_ranks: int, budget: int
) -> None:
    limits = Limits(num_ranks, len(samples), budget)
    offered = [
        Sample.of(number, groups[number % 30], token_ids, int(trained.sum()))
        for number, (token_ids, trained) in enumerate(samples)
    ]
    offered = [sample for sample in offered if limits.allow(sample)]
    plan = plan_step(offered, limits)
    assert sorted(sample.sample_id for sample in plan.samples) == [sample.sample_id for sample in offered]
    for batch in plan.micro_batches:
        assert len(batch) == num_ranks
        assert all(batch) or sum(map(len, batch)) < num_ranks
        for planned in filter(None, batch):
            row = pack([samples[sample.sample_id] for sample in planned])
            assert len(row.input_ids) <= budget and len(row.targets) <= budget
    assert plan_step(offered, limits) == plan


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), max_size=8),
    st.builds(Limits, st.integers(1, 4), st.integers(1, 3), st.integers(12, 30), st.none() | st.integers(1, 5)),
)
def test_what_arrives_later_never_moves_what_was_planned(groups: list[list[int]], limits: Limits) -> None:
    """Groups become ready as a whole; a step that was complete without the later ones is the same with them."""
    sizes = [(group, size) for group, of_group in enumerate(groups) for size in of_group]
    offered = [fresh(number, group, size) for number, (group, size) in enumerate(sizes)]
    full = plan_step(offered, limits)
    taken = full.samples
    assert sorted(sample.sample_id for sample in taken) == list(range(len(taken)))  # the first ones, each once
    if limits.groups_per_step is None:
        assert len(full.micro_batches) <= limits.num_micro_batches
        assert full.complete == (len(taken) < len(offered))
    else:
        held = {sample.group_id for sample in taken}
        assert held == set(range(min(len(groups), limits.groups_per_step)))
        assert len(taken) == sum(sample.group_id in held for sample in offered)
    for last_group in range(len(groups)):
        earlier = plan_step([sample for sample in offered if sample.group_id <= last_group], limits)
        assert earlier == full or not earlier.complete
