"""The planner on steps one can check by eye, and its invariants."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agrpo.packing.planner import Limits, plan_step
from agrpo.packing.shapes import Sample, WholeSamples


def samples(*sizes_by_group):
    """Samples numbered from 1, one list of sizes a group, groups numbered from 0."""
    made = []
    for group, sizes in enumerate(sizes_by_group):
        made += [Sample(len(made) + i + 1, group, size, size - 1) for i, size in enumerate(sizes)]
    return made


def ids(plan):
    return [[[sample.sample_id for sample in row] for row in micro_batch] for micro_batch in plan.micro_batches]


def test_one_rank_fills_its_row_then_the_next_micro_batch():
    plan = plan_step(samples([4, 4], [4, 4], [4]), Limits(num_ranks=1, num_micro_batches=2, token_budget=8))
    assert ids(plan) == [[[1, 2]], [[3, 4]]]
    assert plan.complete


def test_nothing_refused_leaves_the_step_open():
    plan = plan_step(samples([4, 4]), Limits(1, 2, 8))
    assert ids(plan) == [[[1, 2]]]
    assert not plan.complete


def test_a_sample_joins_the_row_of_its_group():
    plan = plan_step(samples([2, 2], [2, 2]), Limits(num_ranks=2, num_micro_batches=1, token_budget=8))
    assert ids(plan) == [[[1, 2], [3, 4]]]


def test_a_full_home_row_sends_a_sample_to_an_empty_row():
    plan = plan_step(samples([4, 4, 4]), Limits(num_ranks=2, num_micro_batches=1, token_budget=8))
    assert ids(plan) == [[[1, 2], [3]]]


def test_a_full_home_row_sends_a_sample_where_it_evens_the_load_else_the_micro_batch_closes():
    # Rows [7] and [2]: sample 3 of group 0 (2 tokens) does not fit at home and evens out row 1.
    even = plan_step([Sample(1, 0, 7, 1), Sample(2, 1, 2, 1), Sample(3, 0, 2, 1)], Limits(2, 1, 8))
    assert ids(even) == [[[1], [2, 3]]]
    # Rows [6, 2] and [5]: sample 4 of group 0 would make row 1 the busiest: closed.
    crowded = [Sample(1, 0, 6, 1), Sample(2, 1, 5, 1), Sample(3, 0, 2, 1), Sample(4, 0, 5, 1)]
    assert ids(plan_step(crowded, Limits(2, 1, 12))) == [[[1, 3], [2]]]


def test_groups_per_step_takes_whole_groups_and_as_many_micro_batches_as_they_need():
    plan = plan_step(samples([4, 4], [4, 4, 4], [4]), Limits(1, 2, 8, groups_per_step=2))
    assert ids(plan) == [[[1, 2]], [[3, 4]], [[5]]]
    assert plan.complete
    assert not plan_step(samples([4, 4]), Limits(1, 2, 8, groups_per_step=2)).complete


def test_the_last_group_completes_the_step_without_a_sample_of_the_next():
    assert plan_step(samples([4], [4]), Limits(1, 1, 8, groups_per_step=2)).complete


def test_one_group_on_two_ranks_leaves_neither_idle():
    plan = plan_step(samples([2, 2, 2, 2]), Limits(2, 1, 100, groups_per_step=1))
    assert ids(plan) == [[[1, 2], [3, 4]]]


@st.composite
def worlds(draw):
    budget = draw(st.integers(4, 30))
    sizes = draw(st.lists(st.lists(st.integers(1, budget), min_size=1, max_size=6), max_size=8))
    limits = Limits(
        num_ranks=draw(st.integers(1, 4)),
        num_micro_batches=draw(st.integers(1, 3)),
        token_budget=budget,
        groups_per_step=draw(st.none() | st.integers(1, 5)),
    )
    return samples(*sizes), limits


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_invariants_of_a_step(world):
    offered, limits = world
    plan = plan_step(offered, limits)
    taken = plan.samples
    assert sorted(s.sample_id for s in taken) == [s.sample_id for s in offered[: len(taken)]]  # a prefix, each once
    for micro_batch in plan.micro_batches:
        assert len(micro_batch) == limits.num_ranks
        held = [sample for row in micro_batch for sample in row]
        assert held
        assert sum(1 for row in micro_batch if row) == min(limits.num_ranks, len(held))
        for row in micro_batch:
            assert sum(sample.num_tokens for sample in row) <= limits.token_budget
    if limits.groups_per_step is None:
        assert len(plan.micro_batches) <= limits.num_micro_batches
        assert plan.complete == (len(taken) < len(offered))
    else:
        groups = {sample.group_id for sample in taken}
        assert len(groups) <= limits.groups_per_step
        assert {s.sample_id for s in offered if s.group_id in groups} == {s.sample_id for s in taken}
    assert plan == plan_step(offered, limits)


@given(worlds())
def test_what_arrives_later_never_moves_what_was_planned(world):
    """Groups become ready as a whole; a step that was complete without the later ones is the same with them."""
    offered, limits = world
    full = plan_step(offered, limits)
    for last_group in {sample.group_id for sample in offered}:
        earlier = plan_step([sample for sample in offered if sample.group_id <= last_group], limits)
        if earlier.complete:
            assert earlier == full


def test_pairs_are_the_causal_ones():
    shape = WholeSamples().with_sample(Sample(1, 0, 3, 2)).with_sample(Sample(2, 0, 2, 1))
    assert (shape.num_tokens, shape.num_pairs) == (5, 9)
