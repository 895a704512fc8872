"""What a foreign agent may ask for, over the `openai` client library, and how it learns of what it may not."""

import asyncio
import threading
from typing import Any

import httpx
import openai
import pytest

from agrpo.errors import MalformedAnswer, RequestRefused
from agrpo.harness.loop import AgentTask, HarnessRolloutLoop
from agrpo.sequences import build_sequences
from agrpo.tools.reading import ReplyReader
from agrpo.tools.schemas import schema_of
from tests.harness.test_harness import PROMPT, TOKENIZER, client, roll, says, scene
from tests.rollout.test_conversation import HERMES_CALL, LLAMA_CALL, XML_CALL, multiply
from tests.worlds.chat_families import GEMMA, LLAMA3, QWEN25, QWEN_XML
from tests.worlds.scripted_server import Answer, ScriptedServer

SYSTEM = {"role": "system", "content": "Be brief."}


def ask(task: AgentTask, *more: Any, client_settings: Any = None, **fields: Any) -> Any:
    messages: Any = [*task.prompt, *more]
    return client(task, **client_settings or {}).chat.completions.create(model="m", messages=messages, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "n=2: one completion"),
        ({"stop": ["Observation:"]}, "stop=.*a turn ends where the model ends it"),
        ({"tool_choice": "required", "tools": [schema_of(multiply)]}, "tool_choice=required"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"parallel_tool_calls": False, "tools": [schema_of(multiply)]}, "parallel_tool_calls=False: the model itself"),
        ({"max_tokens": 0}, "max_tokens=0: expected a whole number"),
        ({"tools": [{"type": "web_search"}]}, "tools: expected a list of functions"),
        ({"extra_body": {"messages": []}}, "messages: expected a list"),
        ({"extra_body": {"messages": [{"role": "user", "content": 3}]}}, "a message lacks or garbles"),
    ],
)
def test_what_cannot_be_kept_is_refused(fields: dict[str, Any], words: str) -> None:
    def agent(task: AgentTask) -> None:
        with pytest.raises(openai.BadRequestError, match=words):
            ask(task, **fields)

    assert roll(agent).turns == []


def test_a_body_that_is_no_json_is_refused() -> None:
    def agent(task: AgentTask) -> None:
        answer = httpx.post(f"{task.base_url}/chat/completions", content=b"{")
        assert answer.status_code == 400 and "no JSON" in answer.json()["error"]["message"]

    assert roll(agent).turns == []


def test_what_says_nothing_or_how_to_sample_is_let_through() -> None:
    def agent(task: AgentTask) -> bool:
        ask(task, n=None, stop=[], response_format={"type": "text"}, temperature=0.0, seed=7, top_p=0.1)
        answer = ask(task, tools=[schema_of(multiply)], tool_choice="none", max_tokens=12, max_completion_tokens=9)
        assert answer.choices[0].message.tool_calls is None
        ask(task, max_tokens=10**6)
        return True

    asked: list[dict[str, Any]] = []
    rollout = roll(agent, "6", HERMES_CALL, "6", asked=asked)
    assert rollout.reward == 1.0 and len(rollout.turns) == 3
    assert [params["max_tokens"] for params in asked] == [2048, 9, 2048]
    assert asked[0]["temperature"] == 1.0 and asked[0]["top_p"] == 1.0


def test_streams_carry_calls_and_usage() -> None:
    def agent(task: AgentTask) -> None:
        stream = ask(task, tools=[schema_of(multiply)], stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
        assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
            (0, "multiply", '{"a": 2, "b": 3}'),
            (1, "multiply", '{"a": 5, "b": 3}'),
        ]
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(answer.token_ids)

    answer = says(HERMES_CALL + HERMES_CALL.replace("2", "5"))
    assert roll(agent, answer).tool_call_count == 2


def stubborn(task: AgentTask) -> None:
    """Goes on until it is told that its conversation is too long, and gives up then."""
    messages: list[Any] = []
    while True:
        try:
            answer = ask(task, *messages)
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded"
            raise
        messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": "x" * 300}]


def test_an_agent_whose_conversation_is_full_leaves_the_turns_it_had() -> None:
    rollout = roll(stubborn, "6", max_model_len=200)
    assert len(rollout.turns) == 1 and rollout.reward is None
    (sample,) = build_sequences(rollout.turns)
    assert sample.num_trained == 2


def test_bugs_of_an_agent_show_after_what_was_made_good() -> None:
    """A full context, or an error of ours, that a later answer made good is no excuse for a bug."""

    def agent(task: AgentTask) -> None:
        ask(task)
        with pytest.raises(openai.BadRequestError, match="leaves no room"):
            ask(task, {"role": "user", "content": "x" * 300})
        with pytest.raises(openai.InternalServerError):
            ask(task)
        ask(task)
        raise ZeroDivisionError("no steps")

    with pytest.raises(ZeroDivisionError):
        roll(agent, "6", Answer(changes={"logprobs": None}), "6", max_model_len=200)


def test_an_answer_makes_nothing_good_that_failed_meanwhile() -> None:
    def agent(task: AgentTask) -> None:
        beside = threading.Thread(target=ask, args=(task,))
        beside.start()
        while not server.requests:
            threading.Event().wait(0.01)
        try:
            ask(task, {"role": "user", "content": "garbled"})
        finally:
            has_failed.set()
            beside.join(20.0)

    async def play(loop: HarnessRolloutLoop) -> None:
        with pytest.raises(MalformedAnswer):
            await loop.generate_one(PROMPT, [])

    has_failed, garbled = threading.Event(), Answer(changes={"logprobs": None})
    with ScriptedServer(lambda prompt, params, n: says("6", after=has_failed) if n == 1 else garbled) as server:
        scene(server, agent, play)


def test_requests_at_the_same_time_do_not_wait_for_each_other() -> None:
    def asks_beside(task: AgentTask) -> None:
        with pytest.raises(openai.NotFoundError):
            ask(task)

    def agent(task: AgentTask) -> None:
        beside.append(threading.Thread(target=asks_beside, args=(task,)))
        beside[0].start()
        while not server.requests:
            threading.Event().wait(0.01)
        ask(task)

    async def play(loop: HarnessRolloutLoop) -> None:
        assert len((await loop.generate_one(PROMPT, [])).turns) == 1
        await asyncio.to_thread(beside[0].join, 10.0)

    beside: list[threading.Thread] = []
    with ScriptedServer(lambda prompt, params, n: says("6", after_s=60.0 if n == 1 else 0.0)) as server:
        scene(server, agent, play)


@pytest.mark.parametrize(("template", "call"), [(QWEN_XML, XML_CALL), (QWEN25, HERMES_CALL)])
def test_a_tool_may_leave_its_parameters_out(template: str, call: str) -> None:
    def agent(task: AgentTask) -> None:
        answer = ask(task, tools=[{"type": "function", "function": {"name": "multiply"}}])
        assert answer.choices[0].message.tool_calls[0].function.arguments == '{"a": 2, "b": 3}'

    assert roll(agent, call, template=template).tool_call_count == 1


def test_a_bug_in_reading_is_ours_and_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any) -> None:
        raise KeyError("parameters")

    monkeypatch.setattr(ReplyReader, "read", read)
    with pytest.raises(KeyError, match="parameters"):
        roll(ask, "6")


def test_half_a_surrogate_pair_goes_to_the_model_as_a_question_mark() -> None:
    def agent(task: AgentTask) -> None:
        httpx.post(f"{task.base_url}/chat/completions", content=body).raise_for_status()

    body = b'{"messages": [{"role": "user", "content": "a\\ud83db"}]}'
    (turn,) = roll(agent, "6").turns
    assert "a?b" in TOKENIZER.decode(turn.prompt_ids)


def test_a_client_that_asks_again_leaves_one_turn() -> None:
    def agent(task: AgentTask) -> None:
        ask(task, client_settings={"max_retries": 1, "timeout": 3.0})

    rollout = roll(agent, says("seen by nobody", after_s=30.0), "6")
    assert [message["content"] for message in rollout.completion] == ["6"]


def test_what_is_still_asked_at_the_end_is_cancelled() -> None:
    ended: list[str] = []

    def asks_beside(task: AgentTask) -> None:
        try:
            ask(task)
        except openai.NotFoundError as error:
            ended.append(str(error))

    def agent(task: AgentTask) -> None:
        beside.append(threading.Thread(target=asks_beside, args=(task,)))
        beside[0].start()
        while not server.requests:
            threading.Event().wait(0.01)

    async def play(loop: HarnessRolloutLoop) -> None:
        rollout = await loop.generate_one(PROMPT, [])
        await asyncio.to_thread(beside[0].join, 10.0)
        assert rollout.turns == [] and "this rollout is over" in ended[0]

    beside: list[threading.Thread] = []
    with ScriptedServer(lambda prompt, params, n: says("6", after_s=60.0)) as server:
        scene(server, agent, play)


def test_a_client_that_recovers_from_an_error_of_ours_fails_nothing() -> None:
    def agent(task: AgentTask) -> float:
        ask(task, client_settings={"max_retries": 1})
        return 1.0

    garbled = Answer(changes={"logprobs": None})
    assert roll(agent, garbled, "6").reward == 1.0
    with pytest.raises(MalformedAnswer) as caught:
        roll(agent, garbled, garbled)
    assert isinstance(caught.value.__cause__, openai.APIStatusError)  # what the agent made of it


def test_a_conversation_that_the_template_refuses_fails_alone() -> None:
    def agent(task: AgentTask) -> None:
        with pytest.raises(openai.BadRequestError, match="the chat template refuses a conversation"):
            ask(task, SYSTEM)

    with pytest.raises(RequestRefused, match="System role not supported"):
        roll(agent, template=GEMMA)


def test_two_calls_in_one_message_come_back_to_a_template_that_shows_one() -> None:
    def agent(task: AgentTask) -> None:
        tools = [schema_of(multiply)]
        message = ask(task, tools=tools).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "6"} for call in message.tool_calls]
        ask(task, message.model_dump(exclude_none=True), *results, tools=tools)

    rollout = roll(agent, f"{LLAMA_CALL}; {LLAMA_CALL}", "Both are 6.", template=LLAMA3)
    assert len(build_sequences(rollout.turns)) == 1 and len(rollout.turns) == 2
