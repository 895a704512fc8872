"""Rollouts with tools over the templates of several families, against a scripted server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agrpo.errors import RequestRefused
from agrpo.records import Message, Rollout
from agrpo.rollout.loop import AsyncRolloutLoop, RolloutPlace, rollout_place
from agrpo.rollout.pool import ServerPool
from agrpo.sequences import build_sequences, drift_tokens
from agrpo.store.servers import ServerRecord
from agrpo.tools.families import family_of, training_template
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from tests.worlds.chat_families import (
    DEEPSEEK,
    DEEPSEEK_MARKS,
    DEEPSEEK_UNTOLD,
    GEMMA,
    LLAMA3,
    LLAMA3_UNTOLD,
    QWEN3,
    QWEN25,
    QWEN_XML,
    SMOLLM,
    family_tokenizer,
)
from tests.worlds.scripted_server import Answer, ScriptedServer

PROMPT: list[Message] = [{"role": "user", "content": "2*3?"}]
HERMES_CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
LOOSE_CALL = '<tool_call>{"arguments": {"b":3,"a":2}, "name": "multiply"}</tool_call>'
LLAMA_CALL = '{"name": "multiply", "parameters": {"a": 2, "b": 3}}'
XML_CALL = (
    "<tool_call>\n<function=multiply>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
DEEPSEEK_CALL = (
    DEEPSEEK_MARKS["CALLS"]
    + DEEPSEEK_MARKS["CALL"]
    + "function"
    + DEEPSEEK_MARKS["SEP"]
    + 'multiply\n```json\n{"a": 2, "b": 3}\n```'
    + DEEPSEEK_MARKS["/CALL"]
    + DEEPSEEK_MARKS["/CALLS"]
)
CALLS = [{"type": "function", "function": {"name": "multiply", "arguments": {"a": 2, "b": 3}}}]
ANSWER = {"role": "tool", "name": "multiply", "content": "6"}


def multiply(a: int, b: int) -> int:
    """Multiplies two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


class World:
    """A loop with one scripted server that says the given texts, one a turn."""

    def __init__(self, template: str, *texts: str, max_model_len: int = 4096, **settings: Any) -> None:
        self.tokenizer = family_tokenizer(template)
        self.settings = settings
        turns = [[*self.tokenizer.encode(text, add_special_tokens=False), 0] for text in texts]
        self.server = ScriptedServer(lambda prompt, params, n: Answer(turns[n - 1]), max_model_len)
        self.place = RolloutPlace("run", 0, 0)

    def roll(self, *tools: Callable[..., Any], prompt: list[Message] = PROMPT) -> Rollout:
        async def run() -> Rollout:
            pool = ServerPool(10.0, _trusted)
            await pool.update([ServerRecord(1, self.server.url, 0, 1, "healthy", 0, {})], 0)
            config = AsyncGRPOConfig(output_dir="unused", use_cpu=True, **self.settings)
            loop = AsyncRolloutLoop(config, "scripted", self.tokenizer, [0], pool)
            rollout_place.set(self.place)
            try:
                return await loop.generate_one(prompt, list(tools))
            finally:
                loop.threads.close()
                await pool.close()

        with self.server:
            return asyncio.run(run())

    def prompts(self) -> list[str]:
        return [self.tokenizer.decode(prompt) for prompt, _ in self.server.requests]


async def _trusted(server: ServerRecord) -> None:
    raise AssertionError("the server serves what was published")


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (QWEN25, HERMES_CALL),
        (QWEN25, LOOSE_CALL),
        (QWEN3, f"<think>\nMultiply.\n</think>\n\n{HERMES_CALL}"),
        (QWEN_XML, f"Multiply.\n</think>\n\n{XML_CALL}"),
        (LLAMA3, LLAMA_CALL),
        (DEEPSEEK, f"<think>\nMultiply.\n</think>\n\n{DEEPSEEK_CALL}"),
        (SMOLLM, HERMES_CALL),
        (GEMMA, HERMES_CALL),
        (LLAMA3_UNTOLD, HERMES_CALL),
        (DEEPSEEK_UNTOLD, HERMES_CALL),
        (SMOLLM, f"<tool_call>[{LLAMA_CALL.replace('parameters', 'arguments')}]</tool_call>"),
    ],
    ids=[
        "qwen2.5",
        "qwen2.5-loose",
        "qwen3",
        "qwen-xml",
        "llama3",
        "deepseek",
        "smollm",
        "gemma",
        "llama3-untold",
        "deepseek-untold",
        "smollm-list",
    ],
)
def test_a_call_is_read_run_and_answered_without_losing_the_prefix(template: str, call: str) -> None:
    """Every generated token lies in one sample, though the template may word the call differently."""
    world = World(template, call, "It is 6.")
    rollout = world.roll(multiply)
    assert rollout.completion[0]["tool_calls"] == CALLS
    assert rollout.completion[1:] == [ANSWER, {"role": "assistant", "content": "It is 6."}]
    assert (rollout.tool_call_count, rollout.tool_failure_count) == (1, 0)
    assert rollout.completion_ids == [token for turn in rollout.turns for token in turn.output_ids]
    first, second = world.prompts()
    assert '"name": "multiply"' in first and "The second." in first
    assert second.startswith(first + call) and "6" in second[len(first + call) :]
    assert drift_tokens(rollout.turns) == [0]
    (sample,) = build_sequences(rollout.turns)
    assert sample.num_trained == len(rollout.completion_ids)


def test_the_content_keeps_what_was_said_beside_the_call() -> None:
    rollout = World(QWEN3, f"<think>\nHm.\n</think>\n\nWait. {HERMES_CALL}", "6").roll(multiply)
    assert rollout.completion[0]["content"] == "<think>\nHm.\n</think>\n\nWait."
    rollout = World(QWEN25, f"Wait. {HERMES_CALL}", "6").roll(multiply)
    assert rollout.completion[0]["content"] == "Wait."


def test_a_call_inside_the_reasoning_is_no_call() -> None:
    rollout = World(QWEN3, f"<think>\nMaybe {HERMES_CALL}\n</think>\n\n6").roll(multiply)
    assert len(rollout.turns) == 1 and rollout.tool_call_count == 0


def test_qwen3_keeps_reasoning_only_with_the_training_template() -> None:
    tokenizer = family_tokenizer(QWEN3)
    messages = [
        *PROMPT,
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\n6"},
        {"role": "user", "content": "And 2*4?"},
    ]

    def render(template: str) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, chat_template=template))

    assert "Hm." not in render(QWEN3) and "Hm." in render(training_template(QWEN3))
    assert training_template(QWEN25) == QWEN25
    names = [family_of(template).name for template in (QWEN3, QWEN25, SMOLLM, LLAMA3, DEEPSEEK, QWEN_XML)]
    assert names == ["hermes", "hermes", "hermes", "llama3", "deepseek", "qwen-xml"]


def test_qwen3_without_thinking_keeps_its_empty_block() -> None:
    world = World(QWEN3, HERMES_CALL, "6", chat_template_kwargs={"enable_thinking": False})
    assert drift_tokens(world.roll(multiply).turns) == [0]


def test_several_calls_run_in_order_until_the_model_stops() -> None:
    world = World(QWEN25, HERMES_CALL + HERMES_CALL.replace("2", "5"), HERMES_CALL, "Done.")
    rollout = world.roll(multiply)
    assert [message["content"] for message in rollout.completion if message["role"] == "tool"] == ["6", "15", "6"]
    assert len(rollout.turns) == 3
    assert world.place.tally.num_calls_by_message == [2, 1] and not world.place.tally.exhausted


def test_two_calls_in_one_message_go_on_where_the_template_refuses_to_show_them() -> None:
    """Llama 3.1 raises for them: what was sampled is shown instead, and nothing of it is lost."""
    world = World(LLAMA3, f"{LLAMA_CALL}; {LLAMA_CALL.replace('2', '5')}", LLAMA_CALL, "Done.")
    rollout = world.roll(multiply)
    assert [message["content"] for message in rollout.completion if message["role"] == "tool"] == ["6", "15", "6"]
    assert [len(message.get("tool_calls", [])) for message in rollout.completion] == [2, 0, 0, 1, 0, 0]
    assert drift_tokens(rollout.turns) == [0, 0]
    assert not world.place.tally.exhausted


def test_a_template_that_cannot_go_on_ends_the_rollout_and_refuses_a_prompt() -> None:
    once = "{%- if messages | length > 1 %}{{ raise_exception('one message only') }}{%- endif %}" + QWEN25
    world = World(QWEN25, HERMES_CALL, chat_template_kwargs={"chat_template": once})
    rollout = world.roll(multiply)
    assert len(rollout.turns) == 1 and rollout.completion[-1] == ANSWER
    assert world.place.tally.exhausted
    with pytest.raises(RequestRefused, match=r"the chat template refuses a conversation \(one message only\)"):
        world.roll(multiply, prompt=[{"role": "system", "content": "Be brief."}, *PROMPT])


def test_a_template_that_knows_only_user_and_assistant_is_told_by_the_user() -> None:
    world = World(GEMMA, HERMES_CALL + HERMES_CALL.replace("2", "5"), "Done.")
    rollout = world.roll(multiply)
    first, second = world.prompts()
    assert first.startswith("<start_of_turn>user\n# Tools") and first.count("<start_of_turn>") == 2
    assert second.count("<tool_response>") == 2 and second.count("<start_of_turn>") == 4
    assert drift_tokens(rollout.turns) == [0]


def test_a_malformed_call_is_answered_with_an_error_and_stays_in_the_history() -> None:
    """Fault 24."""
    broken = '<tool_call>\n{"name": "multiply", "arguments": {"a": 2\n</tool_call>'
    world = World(QWEN25, broken, "Sorry.")
    rollout = world.roll(multiply)
    assert rollout.completion[1]["content"].startswith("Error: the call is not valid JSON")
    assert broken in world.prompts()[1] and drift_tokens(rollout.turns) == [0]
    assert (rollout.tool_call_count, rollout.tool_failure_count) == (1, 1)


def test_half_a_surrogate_pair_that_a_tool_echoes_becomes_a_question_mark() -> None:
    def echo(text: str) -> str:
        """Say it again.

        Args:
            text: What.
        """
        return text

    call = HERMES_CALL.replace("multiply", "echo").replace('"a": 2, "b": 3', '"text": "a\\ud83db"')
    world = World(QWEN25, call, "6")
    assert drift_tokens(world.roll(echo).turns) == [0]
    assert "a?b" in world.prompts()[1]


def test_rounds_of_calls_are_limited() -> None:
    world = World(QWEN25, HERMES_CALL, HERMES_CALL, HERMES_CALL, max_tool_calling_iterations=1)
    rollout = world.roll(multiply)
    assert len(rollout.turns) == 2 and rollout.tool_call_count == 1
    assert world.place.tally.exhausted


def test_a_turn_cut_by_its_length_ends_the_rollout() -> None:
    world = World(QWEN25, HERMES_CALL)
    ids = world.tokenizer.encode(HERMES_CALL, add_special_tokens=False)
    world.server.script = lambda prompt, params, n: Answer(ids, changes={"finish_reason": "length"})
    rollout = world.roll(multiply)
    assert len(rollout.turns) == 1 and rollout.tool_call_count == 0


def test_without_tools_markup_is_only_text() -> None:
    rollout = World(QWEN25, HERMES_CALL).roll()
    assert rollout.completion == [{"role": "assistant", "content": HERMES_CALL}] and len(rollout.turns) == 1
