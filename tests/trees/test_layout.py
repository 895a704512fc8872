from itertools import pairwise

import numpy as np
from hypothesis import given, settings

from agrpo.trees import TreeLayout, pack
from tests.worlds.forest import Sample, forests, sample


def seen(layout: TreeLayout) -> np.ndarray:
    """Who sees whom by the blocks, counted, int [tokens, tokens]."""
    counts = np.zeros((layout.num_tokens, layout.num_tokens), int)
    for block in layout.blocks:
        size = block.end_query - block.first_query, block.end_key - block.first_key
        square = np.tri(*size, dtype=int) if block.causal else np.ones(size, int)
        counts[block.first_query : block.end_query, block.first_key : block.end_key] += square
    return counts


def path(layout: TreeLayout, number: int) -> list[int]:
    return layout.locate(number, np.arange(layout.forks[number].num_tokens)).tolist()


def test_two_samples_fork_one_token_before_they_differ() -> None:
    row = pack([sample([1, 2, 3, 11, 12], 3), sample([1, 2, 3, 21, 22], 3)])
    layout = row.layout
    assert row.input_ids.tolist() == [1, 2, 3, 11, 12, 3, 21, 22]
    assert layout.position_ids.tolist() == [0, 1, 2, 3, 4, 2, 3, 4]
    assert layout.segments.starts.tolist() == [0, 2, 5, 8]
    assert layout.segments.parents.tolist() == [-1, 0, 0]
    assert [path(layout, 0), path(layout, 1)] == [[0, 1, 2, 3, 4], [0, 1, 5, 6, 7]]
    assert row.positions.tolist() == [2, 3, 5, 6]
    assert row.targets.tolist() == [11, 12, 21, 22]
    assert row.samples.tolist() == [0, 0, 1, 1]
    assert row.packing_ratio == 10 / 8


def test_keys_are_gathered_along_each_path() -> None:
    gathered = pack([sample([1, 2, 3, 11, 12]), sample([1, 2, 3, 21, 22])]).layout.gathered
    assert gathered.key_index.tolist() == [0, 1, 2, 3, 4, 0, 1, 5, 6, 7]
    assert gathered.cu_queries.tolist() == [0, 5, 8]
    assert gathered.cu_keys.tolist() == [0, 5, 10]


def test_a_tail_is_followed_by_its_deepest_fork() -> None:
    row = pack([sample([1, 2, 3, 4]), sample([1, 9]), sample([1, 2, 3, 8])])
    assert row.input_ids.tolist() == [1, 2, 3, 4, 3, 8, 1, 9]
    assert row.layout.blocks[1].first_query == 4


def test_a_prefix_forks_at_its_last_token_and_a_repeat_costs_nothing() -> None:
    row = pack([sample([1, 2, 3]), sample([1, 2]), sample([1, 2, 3])])
    assert row.input_ids.tolist() == [1, 2, 3, 2]
    assert row.positions.tolist() == [0, 1, 0, 0, 1]


def test_rollouts_that_differ_at_once_cost_the_prompt_once() -> None:
    prompt = list(range(100, 150))
    row = pack([sample([*prompt, number, *range(200, 211)], 50) for number in range(8)])
    assert len(row.input_ids) == 49 + 8 * 13


@settings(deadline=None)
@given(forests())
def test_a_row_gives_every_sample_its_own_tokens_positions_and_targets(samples: list[Sample]) -> None:
    row = pack(samples)
    for number, (token_ids, trained) in enumerate(samples):
        indices = path(row.layout, number)
        assert row.input_ids[indices].tolist() == token_ids.tolist()
        assert row.layout.position_ids[indices].tolist() == list(range(len(token_ids)))
        mine = row.samples == number
        assert row.targets[mine].tolist() == token_ids[trained].tolist()
        assert row.input_ids[row.positions[mine]].tolist() == token_ids[np.flatnonzero(trained) - 1].tolist()


@settings(deadline=None)
@given(forests())
def test_every_token_sees_its_own_path_once(samples: list[Sample]) -> None:
    layout = pack(samples).layout
    expected = np.zeros((layout.num_tokens, layout.num_tokens), int)
    for number in range(len(samples)):
        indices = path(layout, number)
        for position, index in enumerate(indices):
            expected[index, indices[: position + 1]] = 1
    assert (seen(layout) == expected).all()
    assert layout.num_pairs == expected.sum()
    query, key = np.indices(expected.shape)
    assert ((key <= query) & (query < layout.last_reader[key]) == expected.astype(bool)).all()


@settings(deadline=None)
@given(forests())
def test_nodes_are_distinct_pairs_of_a_token_and_the_next(samples: list[Sample]) -> None:
    nodes = set()
    for token_ids, _ in samples:
        following = [*token_ids.tolist()[1:], None]
        keys = tuple(zip(token_ids.tolist(), following, strict=True))
        nodes |= {keys[:size] for size in range(1, len(keys) + 1)}
    assert pack(samples).layout.num_tokens == len(nodes)


@settings(deadline=None)
@given(forests())
def test_segments_end_at_branches_and_leaves(samples: list[Sample]) -> None:
    layout = pack(samples).layout
    starts, parents = layout.segments.starts, layout.segments.parents
    assert starts[0] == 0 and starts[-1] == layout.num_tokens
    assert all(begin < end for begin, end in pairwise(starts.tolist()))
    owner = np.searchsorted(starts, np.arange(layout.num_tokens), side="right") - 1
    for number in range(len(samples)):
        walked = owner[path(layout, number)]
        order = list(dict.fromkeys(walked.tolist()))
        assert [-1, *order[:-1]] == parents[order].tolist()
        for segment in order:
            assert (walked == segment).sum() == starts[segment + 1] - starts[segment]


@settings(deadline=None)
@given(forests())
def test_without_sharing_a_row_is_a_concatenation(samples: list[Sample]) -> None:
    row = pack(samples, share=False)
    assert row.input_ids.tolist() == np.concatenate([token_ids for token_ids, _ in samples]).tolist()
    assert row.packing_ratio == 1
    assert all(block.causal for block in row.layout.blocks)
