"""Answers of a server, ordinary and damaged (faults 8 and 21)."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agrpo.errors import MalformedAnswer, ServerOutage
from agrpo.inference.answers import (
    clean,
    from_completions,
    from_token_endpoint,
    most_likely,
    prompt_log_probs,
    with_candidates,
)
from agrpo.records import TurnRecord
from agrpo.sequences import VLLM_FLOOR


def token(token_id: int, log_prob: object, *top: tuple[int, object]) -> dict[str, Any]:
    return {
        "token_id": token_id,
        "logprob": log_prob,
        "top_logprobs": [{"token_id": t, "logprob": value} for t, value in top],
    }


def generated(*tokens: dict[str, Any], **fields: Any) -> dict[str, Any]:
    choice = {
        "token_ids": [t["token_id"] for t in tokens],
        "logprobs": {"content": list(tokens)},
        "finish_reason": "stop",
        "weight_versions": [{"version": "3", "start": 0, "end": len(tokens)}],
    }
    return {"choices": [choice | fields]}


def test_token_endpoint_gives_ids_log_probs_tops_and_versions() -> None:
    answer = generated(
        token(7, -3.0, (7, -3.0), (5, -0.5), (6, -1.5)),
        token(5, -0.5, (5, -0.5), (9, -2.0), (8, -2.5)),
    )
    turn = from_token_endpoint(answer, [1, 2], num_top=2, restricted=False)
    assert turn == TurnRecord(
        prompt_ids=[1, 2],
        output_ids=[7, 5],
        output_log_probs=[-3.0, -0.5],
        output_sampler_logprobs=[{5: -0.5, 6: -1.5}, {5: -0.5, 9: -2.0}],
        finish_reason="stop",
        weight_versions=[("3", 0, 2)],
    )


def test_completions_give_the_same_without_versions() -> None:
    choice = {
        "token_ids": [7],
        "finish_reason": "length",
        "logprobs": {
            "token_logprobs": [-3.0],
            "top_logprobs": [{"token_id:7": -3.0, "token_id:5": -0.5, "token_id:6": -1.5}],
        },
    }
    turn = from_completions({"choices": [choice]}, [1], num_top=2)
    assert turn.output_ids == [7] and turn.output_log_probs == [-3.0]
    assert turn.output_sampler_logprobs == [{5: -0.5, 6: -1.5}]
    assert turn.weight_versions == [] and turn.finish_reason == "length"


def test_no_top_log_probs_when_none_were_asked_for() -> None:
    turn = from_token_endpoint(generated(token(7, -3.0, (7, -3.0))), [1], num_top=0, restricted=False)
    assert turn.output_sampler_logprobs is None


@pytest.mark.parametrize("value", [None, math.nan, -math.inf, math.inf, VLLM_FLOOR, -10000.0])
def test_a_log_prob_that_the_server_could_not_give_is_nan(value: object) -> None:
    turn = from_token_endpoint(generated(token(7, value, (7, value), (5, -0.1))), [1], 2, restricted=False)
    assert math.isnan(turn.output_log_probs[0])
    assert turn.output_sampler_logprobs == [{5: -0.1}]


@given(st.dictionaries(st.integers(0, 99), st.one_of(st.none(), st.floats()), max_size=12), st.integers(1, 8))
def test_most_likely_keeps_only_real_values_and_the_largest(pairs: dict[int, float | None], num_top: int) -> None:
    kept = most_likely(pairs.items(), num_top)
    real = {t: clean(v) for t, v in pairs.items() if not math.isnan(clean(v))}
    assert len(kept) == min(num_top, len(real)) and kept.items() <= real.items()
    left_out = [value for t, value in real.items() if t not in kept]
    assert not left_out or max(left_out) <= min(kept.values())


@pytest.mark.parametrize(
    "damage",
    [
        {"logprobs": None},
        {"logprobs": {"content": None}},
        {"logprobs": {"content": [token(7, -1.0)]}},
        {"logprobs": {"content": [{"token_id": 7}, {"token_id": 8}]}},
        {"logprobs": {"content": [token(7, "x"), token(8, -1.0)]}},
        {"token_ids": None},
        {"token_ids": ["7", "8"]},
        {"weight_versions": [{"version": "3"}]},
    ],
)
def test_a_damaged_answer_is_refused(damage: dict[str, Any]) -> None:
    answer = generated(token(7, -1.0), token(8, -1.0), **damage)
    with pytest.raises(MalformedAnswer):
        from_token_endpoint(answer, [1], 2, restricted=False)


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": None}, {"choices": [None]}])
def test_an_answer_without_a_choice_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        from_token_endpoint(answer, [1], 2, restricted=True)
    with pytest.raises(MalformedAnswer):
        from_completions(answer, [1], 2)


def test_a_request_that_the_server_aborted_is_an_outage() -> None:
    with pytest.raises(ServerOutage, match="abort"):
        from_token_endpoint(generated(token(7, -1.0), finish_reason="abort"), [1], 2, restricted=False)


def test_candidate_sets_are_kept_when_they_hold_the_sampled_token() -> None:
    answer = generated(token(7, -1.0), token(8, -0.5), sampling_mask=[[7, 9], [8]])
    turn = from_token_endpoint(answer, [1], 0, restricted=True)
    assert turn.output_sampling_mask == [[7, 9], [8]] and turn.output_log_probs == [-1.0, -0.5]


def test_a_candidate_set_without_the_sampled_token_excludes_the_token() -> None:
    answer = generated(token(7, -1.0), token(8, -0.5), sampling_mask=[[5, 9], [8, 6]])
    turn = from_token_endpoint(answer, [1], 0, restricted=True)
    assert math.isnan(turn.output_log_probs[0]) and turn.output_log_probs[1] == -0.5
    assert turn.output_sampling_mask == [[7], [8, 6]]


@pytest.mark.parametrize("sets", [None, [], [[7]], [[7], [8], [9]], "7"])
def test_candidate_sets_that_do_not_line_up_exclude_every_token(sets: object) -> None:
    turn = from_token_endpoint(generated(token(7, -1.0), token(8, -0.5)), [1], 0, restricted=False)
    assert all(math.isnan(value) for value in with_candidates(turn, sets).output_log_probs)


def test_prompt_log_probs_line_up_with_the_tokens() -> None:
    answer = {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": -0.5}}, {"6": {"logprob": VLLM_FLOOR}}]}]}
    first, second, third = prompt_log_probs(answer, [4, 5, 6])
    assert math.isnan(first) and second == -0.5 and math.isnan(third)
    with pytest.raises(MalformedAnswer):
        prompt_log_probs(answer, [4, 5])
    with pytest.raises(MalformedAnswer):
        prompt_log_probs(answer, [4, 7, 6])
