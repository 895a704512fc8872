from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agrpo.records import TurnRecord
from agrpo.store.payload import read_turns, turn_rows

tokens = st.lists(st.integers(0, 5), max_size=6)
log_prob = st.floats(width=32, allow_nan=False)


@st.composite
def turns(draw):
    output = draw(tokens)
    each = {"min_size": len(output), "max_size": len(output)}
    return TurnRecord(
        prompt_ids=draw(tokens),
        output_ids=output,
        output_log_probs=draw(st.lists(log_prob, **each)),
        output_mask=draw(st.none() | st.lists(st.integers(0, 1), **each)),
        output_sampling_mask=draw(st.none() | st.lists(tokens, **each)),
        output_sampler_logprobs=draw(st.none() | st.lists(st.dictionaries(st.integers(0, 9), log_prob), **each)),
        finish_reason=draw(st.sampled_from([None, "stop", "length"])),
        weight_versions=draw(st.lists(st.tuples(st.text(max_size=2), st.just(0), st.just(1)), max_size=2)),
    )


@given(tokens, st.lists(turns(), max_size=4))
def test_turns_come_back_whole(prompt_ids, given_turns):
    rows = [SimpleNamespace(**row) for row in turn_rows(1, 0, prompt_ids, given_turns)]
    assert read_turns(prompt_ids, rows) == given_turns


def test_missing_log_probs_stay_missing():
    turn = TurnRecord([1], [2, 3], [float("nan"), -0.5])
    (row,) = turn_rows(1, 0, [1], [turn])
    (read,) = read_turns([1], [SimpleNamespace(**row)])
    np.testing.assert_array_equal(read.output_log_probs, turn.output_log_probs)
    assert replace(read, output_log_probs=[]) == replace(turn, output_log_probs=[])
