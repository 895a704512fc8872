"""What becomes of turns that the next prompt does not hold as they were sampled: every token is trained once."""

import numpy as np

from agrpo.records import TurnRecord
from agrpo.rollout.conversation import ChatFormat, Conversation
from agrpo.sequences import build_sequences, drift_tokens
from tests.rollout.test_conversation import PROMPT
from tests.worlds.chat_families import QWEN3, SMOLLM, family_tokenizer


def chat(template: str, merges: list[tuple[str, str]] | None = None) -> ChatFormat:
    return ChatFormat(family_tokenizer(template, merges), {}, frozenset([0]))


def turn(prompt: list[int], output: list[int], mask: list[int] | None = None) -> TurnRecord:
    """The log-probability of a token is its place in the turn."""
    return TurnRecord(prompt, output, [-1.0 - i for i in range(len(output))], mask)


def terms(turns: list[TurnRecord]) -> list[tuple[list[int], int, float]]:
    """(context, token, log-prob) of every loss term of a rollout."""
    return [
        (sample.token_ids[:i].tolist(), int(sample.token_ids[i]), float(sample.log_probs[i]))
        for sample in build_sequences(turns)
        for i in np.flatnonzero(sample.trained)
    ]


def expected(turns: list[TurnRecord]) -> list[tuple[list[int], int, float]]:
    return [
        (turn.prompt_ids + turn.output_ids[:i], token, -1.0 - i)
        for turn in turns
        for i, token in enumerate(turn.output_ids)
        if turn.output_mask is None or turn.output_mask[i]
    ]


def test_a_tokenizer_that_merges_what_was_sampled_apart_starts_a_new_sample() -> None:
    """Fault 10: "he" and "llo" were sampled, and the next prompt holds "hello"."""
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    format = chat(SMOLLM, merges)
    tokenizer = family_tokenizer(SMOLLM, merges)
    parts = [tokenizer.convert_tokens_to_ids(part) for part in ("he", "llo")]
    assert len(tokenizer.encode("hello", add_special_tokens=False)) == 1
    conversation = Conversation(format, PROMPT, [])
    conversation.add_turn(turn(conversation.next_prompt(), [*parts, 0]))
    conversation.add_message({"role": "user", "content": "?"})
    conversation.add_turn(turn(conversation.next_prompt(), [5, 0]))
    assert len(build_sequences(conversation.turns)) == 2 and drift_tokens(conversation.turns) == [3]
    assert terms(conversation.turns) == expected(conversation.turns)


def test_a_template_that_drops_reasoning_forks_and_trains_every_token_once() -> None:
    """Fault 10: without tools the model's own template is used, which forgets earlier reasoning."""
    tokenizer = family_tokenizer(QWEN3)
    said = tokenizer.encode("<think>\nHm.\n</think>\n\n6", add_special_tokens=False)
    first = turn(chat(QWEN3).render(PROMPT), [*said, 0])
    history = [*PROMPT, {"role": "assistant", "content": tokenizer.decode(said)}, {"role": "user", "content": "Sure?"}]
    second = turn(chat(QWEN3).render(history), [7, 0], mask=[1, 0])
    turns = [first, second]
    assert len(build_sequences(turns)) == 2 and drift_tokens(turns)[0] > len(said) - 3
    assert terms(turns) == expected(turns)
