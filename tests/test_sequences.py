import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo.errors import BadInput
from agrpo.records import TrainingSequence, TurnRecord
from agrpo.sequences import build_sequences, drift_tokens, num_refused_tokens

NAN = float("nan")


def trained_terms(sequence: TrainingSequence) -> list[tuple[list[int], int, float]]:
    """(context, token, log-prob) of every loss term."""
    ids = sequence.token_ids.tolist()
    return [(ids[:i], ids[i], float(sequence.log_probs[i])) for i in np.flatnonzero(sequence.trained)]


def test_a_turn_that_continues_the_held_tokens_extends_the_same_sample() -> None:
    turns = [
        TurnRecord([1, 2], [3, 4], [-0.5, -0.25]),
        TurnRecord([1, 2, 3, 4, 9], [5], [-0.75]),
    ]
    (sample,) = build_sequences(turns)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 9, 5]
    assert sample.trained.tolist() == [False, False, True, True, False, True]
    assert sample.log_probs[sample.trained].tolist() == [-0.5, -0.25, -0.75]
    assert np.isnan(sample.log_probs[~sample.trained]).all()
    assert drift_tokens(turns) == [0]


def test_a_retokenised_history_starts_a_new_sample() -> None:
    turns = [
        TurnRecord([1], [2, 3], [-0.1, -0.2]),  # "he" "llo"
        TurnRecord([1, 7, 8], [4], [-0.3]),  # rendered again as "hello"
    ]
    first, second = build_sequences(turns)
    assert first.token_ids.tolist() == [1, 2, 3]
    assert second.token_ids.tolist() == [1, 7, 8, 4]
    assert second.trained.tolist() == [False, False, False, True]
    assert drift_tokens(turns) == [2]


def test_masked_tokens_and_tokens_without_log_probability_stay_context() -> None:
    turn = TurnRecord([1], [2, 3, 4, 5, 6], [-0.1, NAN, -0.3, -9999.0, -math.inf], output_mask=[0, 1, 1, 1, 1])
    (sample,) = build_sequences([turn])
    assert sample.trained.tolist() == [False, False, False, True, False, False]
    assert num_refused_tokens([turn]) == 3


def test_a_sample_without_a_trained_token_is_left_out() -> None:
    assert build_sequences([TurnRecord([1, 2], [3], [NAN])]) == []
    assert build_sequences([TurnRecord([1, 2], [3, 4], output_mask=[0, 0])]) == []
    assert build_sequences([TurnRecord([1, 2], [])]) == []


def test_a_turn_without_room_adds_nothing_to_a_sample() -> None:
    turns = [TurnRecord([1, 2], [3], [-0.5]), TurnRecord([1, 2, 3, 4, 5], [], finish_reason="length")]
    (sample,) = build_sequences(turns)
    assert sample.token_ids.tolist() == [1, 2, 3]


def test_the_first_token_of_a_sample_is_never_a_loss_term() -> None:
    (sample,) = build_sequences([TurnRecord([], [5, 6], [-0.1, -0.2])])
    assert sample.trained.tolist() == [False, True]


def test_top_log_probs_and_candidates_follow_the_trained_tokens() -> None:
    turn = TurnRecord(
        [1],
        [2, 3, 4],
        [-0.1, -0.2, -0.3],
        output_sampling_mask=[[2, 5], [6, 7], [4, 5]],
        output_sampler_logprobs=[{2: -0.1, 5: -math.inf}, {3: -0.2}, {4: -0.3, 9: -1.0, 5: -9999.0}],
    )
    (sample,) = build_sequences([turn])
    assert sample.trained.tolist() == [False, True, False, True]  # 3 is not in its own candidate set
    assert num_refused_tokens([turn]) == 1
    assert [ids.tolist() for ids in sample.candidates or []] == [[2, 5], [4, 5]]
    assert [ids.tolist() for ids in sample.top_ids or []] == [[2], [4]]
    assert [values.tolist() for values in sample.top_log_probs or []] == [[np.float32(-0.1)], [np.float32(-0.3)]]


def test_a_sample_has_candidate_sets_for_all_its_tokens_or_none() -> None:
    turns = [
        TurnRecord([1], [2], [-0.1], output_sampling_mask=[[2, 5]]),
        TurnRecord([1, 2, 3], [4], output_mask=[0]),  # trains nothing, and needs no set
        TurnRecord([1, 2, 3, 4], [5], [-0.2], output_sampling_mask=[[5, 6]]),
        TurnRecord([1, 2, 3, 4, 5], [6], [-0.3]),  # of a server that cannot give them
        TurnRecord([1, 2, 3, 4, 5, 6, 7], [8], [-0.4]),
    ]
    restricted, free = build_sequences(turns)
    assert [ids.tolist() for ids in restricted.candidates or []] == [[2, 5], [5, 6]]
    assert free.candidates is None
    terms = [term for sample in (restricted, free) for term in trained_terms(sample)]
    assert [(context, token) for context, token, _ in terms] == [
        ([1], 2),
        ([1, 2, 3, 4], 5),
        ([1, 2, 3, 4, 5], 6),
        ([1, 2, 3, 4, 5, 6, 7], 8),
    ]


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        (TurnRecord([1], [2, 3], [-0.1]), "output_log_probs"),
        (TurnRecord([1], [2, 3]), "output_log_probs"),
        (TurnRecord([1], [2], [-0.1], output_mask=[1, 1]), "output_mask"),
        (TurnRecord([1], [2], [-0.1], output_sampling_mask=[]), "output_sampling_mask"),
        (TurnRecord([1], [2], [-0.1], output_sampler_logprobs=[{}, {}]), "output_sampler_logprobs"),
    ],
)
def test_lists_of_another_length_are_named(turn: TurnRecord, name: str) -> None:
    with pytest.raises(BadInput, match=name):
        build_sequences([turn])


@st.composite
def conversations(draw: st.DrawFn) -> list[TurnRecord]:
    """Turns whose prompts continue, or do not, what was held; generated tokens are all different."""
    held: list[int] = []
    turns, fresh = [], iter(range(1000, 2000))
    for _ in range(draw(st.integers(1, 5))):
        kept = draw(st.integers(0, len(held)))
        prompt = held[:kept] + draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
        output = [next(fresh) for _ in range(draw(st.integers(0, 4)))]
        turns.append(TurnRecord(prompt, output, [-float(token) for token in output]))
        held = prompt + output
    return turns


@given(conversations())
def test_every_generated_token_is_trained_once_in_its_exact_context(turns: list[TurnRecord]) -> None:
    expected = sorted(
        (token, turn.prompt_ids + turn.output_ids[:i], -float(token))
        for turn in turns
        for i, token in enumerate(turn.output_ids)
    )
    terms = [term for sample in build_sequences(turns) for term in trained_terms(sample)]
    assert sorted((token, context, log_prob) for context, token, log_prob in terms) == expected
