"""Turns read by the tokenizer's own response parsing, where it has one."""

from typing import Any

import pytest

from agrpo.errors import BadInput
from agrpo.sequences import build_sequences, drift_tokens
from tests.rollout.test_conversation import CALLS, HERMES_CALL, World, multiply
from tests.worlds.chat_families import QWEN25, SMOLLM

CALL = '{"name": "multiply", "arguments": {"a": 2, "b": 3}}'
OWN_CALL = f"@call{CALL}@end"
OWN_PARSING = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"close": ["<|im_end|>"]},
        "tool_calls": {
            "open": "@call",
            "close": "@end",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("{nonsense", "the message cannot be read: json parser could not"),
        ("[" * 2_000, "the message cannot be read: maximum recursion depth exceeded"),
        ('{"arguments": {}}', 'a call is a JSON object with "name"'),
        ("[1]", 'a call is a JSON object with "name"'),
        ("null", 'a call is a JSON object with "name"'),
        ('{"name": "multiply", "arguments": [2, 3]}', "the arguments are a JSON object, not list"),
    ],
    ids=["nonsense", "deep", "nameless", "list", "null", "arguments"],
)
def test_the_tokenizers_own_response_parsing_is_preferred(body: str, error: str) -> None:
    """Fault 24."""
    world = World(QWEN25, f"Hm. {OWN_CALL}", f"@call{body}@end", "6", max_model_len=8192)
    world.tokenizer.response_template = OWN_PARSING
    rollout = world.roll(multiply)
    assert rollout.completion[0] == {"role": "assistant", "content": "Hm.", "tool_calls": CALLS}
    assert rollout.completion[3]["content"].startswith(f"Error: {error}")
    assert rollout.completion[4] == {"role": "assistant", "content": "6"}
    assert drift_tokens(rollout.turns) == [0, 0]


def test_a_response_template_may_ask_for_what_an_empty_message_lacks() -> None:
    world = World(QWEN25, OWN_CALL, "6")
    fields = {**OWN_PARSING["fields"], "content": {"close": ["<|im_end|>"], "optional": False}}  # type: ignore[dict-item]
    world.tokenizer.response_template = {**OWN_PARSING, "fields": fields}
    rollout = world.roll(multiply)
    assert rollout.completion[1]["content"].startswith("Error: the message cannot be read: Required")
    assert rollout.completion[2] == {"role": "assistant", "content": "6"}


def test_a_list_of_calls_may_hold_one_that_a_transform_cannot_take() -> None:
    each = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}
    calls = {"open": "@call", "close": "@end", "content": "json", "transform_each": True, "transform": each}
    world = World(QWEN25, f"@call[{CALL}]@end", '@call[{"arguments": {}}]@end', "6")
    world.tokenizer.response_template = {**OWN_PARSING, "fields": {**OWN_PARSING["fields"], "tool_calls": calls}}  # type: ignore[dict-item]
    rollout = world.roll(multiply)
    assert rollout.completion[0]["tool_calls"] == CALLS
    assert rollout.completion[3]["content"].startswith("Error: the message cannot be read: ")
    assert rollout.completion[4] == {"role": "assistant", "content": "6"}


def test_the_tokenizers_own_parsing_reads_no_calls_that_we_describe() -> None:
    world = World(SMOLLM, HERMES_CALL, "6")
    world.tokenizer.response_template = OWN_PARSING
    assert world.roll(multiply).tool_call_count == 1


def test_a_response_template_that_cannot_be_used_is_refused() -> None:
    world = World(QWEN25, "6")
    world.tokenizer.response_template = {"fields": {}}
    with pytest.raises(BadInput, match=r"response_template of the tokenizer cannot be used: .*non-empty"):
        world.roll(multiply)


@pytest.mark.parametrize("response_template", [None, OWN_PARSING])
def test_a_conversation_that_outgrows_the_server_ends_as_truncated(response_template: Any) -> None:
    def book() -> str:
        """Read a book."""
        return "x" * 600

    call = HERMES_CALL if response_template is None else OWN_CALL
    world = World(QWEN25, call.replace("multiply", "book").replace('"a": 2, "b": 3', ""), max_model_len=800)
    world.tokenizer.response_template = response_template
    rollout = world.roll(book)
    assert len(world.server.requests) == 1
    assert [turn.finish_reason for turn in rollout.turns] == ["stop", "length"]
    assert rollout.turns[1].output_ids == [] and rollout.completion[-1]["role"] == "tool"
    (sample,) = build_sequences(rollout.turns)
    assert sample.num_trained == len(rollout.turns[0].output_ids)
    assert sample.num_tokens <= 800
