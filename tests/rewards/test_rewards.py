import pickle

import pytest

from agrpo.records import Message
from agrpo.rewards import (
    accuracy_reward,
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    reasoning_accuracy_reward,
    think_format_reward,
)
from agrpo.rollout.isolation import wants_process


def said(*texts: str) -> list[list[Message]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_accuracy_compares_expressions_and_leaves_out_unreadable_solutions() -> None:
    completions = said(r"So it is $\frac{1}{2}$.", r"\boxed{0.5}", "It is 3.", "", "anything")
    solutions = [r"$\frac{1}{2}$", r"$\frac{1}{2}$", "4", "4", "no mathematics here"]
    assert accuracy_reward(completions=completions, solution=solutions, prompts=[]) == [1.0, 1.0, 0.0, 0.0, None]


def test_reasoning_accuracy_reads_only_what_follows_the_reasoning() -> None:
    completions = said("<think>4</think> It is 5.", "<think>5</think> It is $4$.", "<think>it is $4$")
    assert reasoning_accuracy_reward(completions=completions, solution=["4"] * 3) == [0.0, 1.0, 0.0]
    custom = reasoning_accuracy_reward(completions=said("a ### 4"), solution=["4"], reasoning_delimiters=["###"])
    assert custom == [1.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\nb</think>c", 1.0),
        ("<think></think>", 1.0),
        ("c <think>a</think>", 0.0),
        ("<think>a", 0.0),
        ("<think>a<think>b</think>c", 0.0),
        ("<think>a</think>b<think>c</think>", 0.0),
    ],
)
def test_think_format(text: str, expected: float) -> None:
    assert think_format_reward(completions=said(text), task=["x"]) == [expected]


def test_cosine_scaling_of_right_and_wrong_answers() -> None:
    reward = get_cosine_scaled_reward(max_len=4)
    lengths = [[], [1, 2], [1, 2, 3, 4], [1] * 9]
    right = reward(completions=said("4", "4", "4", "4"), completion_ids=lengths, solution=["4"] * 4)
    wrong = reward(completions=said("5", "5", "5", "5"), completion_ids=lengths, solution=["4"] * 4)
    assert right == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert wrong == pytest.approx([-1.0, -0.75, -0.5, -0.5])


def test_repetition_penalty_counts_distinct_ngrams_of_tokens() -> None:
    reward = get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.0)
    assert reward(completion_ids=[[7] * 5, [1, 2, 3, 4], [1]]) == pytest.approx([-0.75, 0.0, 0.0])
    with pytest.raises(ValueError, match="0 or less"):
        get_repetition_penalty_reward(ngram_size=2, max_penalty=0.5)


def test_soft_overlong_punishment_falls_over_the_last_tokens() -> None:
    reward = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert reward(completion_ids=[[1] * n for n in (80, 90, 100, 101)]) == pytest.approx([0.0, -0.5, -1.0, -1.0])


def test_soft_overlong_punishment_may_begin_at_the_limit() -> None:
    reward = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=0)
    assert reward(completion_ids=[[1] * n for n in (100, 101)]) == [0.0, -1.0]
    with pytest.raises(ValueError, match="soft_punish_cache=-1"):
        get_soft_overlong_punishment(100, -1)


def test_what_a_tool_said_last_is_no_answer() -> None:
    call: Message = {"role": "assistant", "content": "<think>4</think>"}
    completions = [[call, {"role": "tool", "name": "add", "content": "<think>4</think> 4"}]]
    assert accuracy_reward(completions=completions, solution=["4"]) == [0.0]
    assert think_format_reward(completions=completions) == [0.0]


def test_every_reward_can_reach_the_worker_and_those_with_signals_ask_for_a_process() -> None:
    rewards = [accuracy_reward, reasoning_accuracy_reward, get_cosine_scaled_reward()]
    others = [think_format_reward, get_repetition_penalty_reward(2, -1.0), get_soft_overlong_punishment(8, 2)]
    assert all(wants_process(pickle.loads(pickle.dumps(reward))) for reward in rewards)
    assert not any(wants_process(pickle.loads(pickle.dumps(reward))) for reward in others)
