"""A foreign agent, the `openai` client library, against the endpoint over a scripted server."""

import asyncio
import json
import pickle
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from agrpo.errors import BadInput, RequestRefused
from agrpo.harness.loop import Agent, AgentTask, HarnessRolloutLoop
from agrpo.records import Message, Rollout
from agrpo.rollout import threads
from agrpo.rollout.loop import RolloutPlace, rollout_place
from agrpo.rollout.pool import ServerPool
from agrpo.rollout.threads import TooManyHung
from agrpo.sequences import build_sequences, drift_tokens
from agrpo.store import groups, samples
from agrpo.store.servers import ServerRecord
from agrpo.tools.schemas import schema_of
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from tests.rollout.run_world import RunWorld, finished, rows
from tests.rollout.test_conversation import HERMES_CALL, LLAMA_CALL, LOOSE_CALL, multiply
from tests.worlds.chat_families import LLAMA3, QWEN3, QWEN25, family_tokenizer
from tests.worlds.scripted_server import Answer, ScriptedServer

PROMPT: list[Message] = [{"role": "user", "content": "2*3?"}]
TOKENIZER = family_tokenizer(QWEN25)


def says(text: str, tokenizer: Any = TOKENIZER, **answer: Any) -> Answer:
    return Answer([*tokenizer.encode(text, add_special_tokens=False), 0], **answer)


def calculator_agent(task: AgentTask) -> float:
    """An agent as people write it: asks, runs what is called, sends the answer back, until there is no call."""
    assert task.columns.keys() <= {"number"}
    client = openai.OpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0)
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, *task.prompt]
    while True:
        answer = client.chat.completions.create(model=task.model, messages=messages, tools=[schema_of(multiply)])  # type: ignore[list-item]
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if answer.choices[0].finish_reason != "tool_calls":
            return float("6" in (message.content or ""))
        for call in message.tool_calls or []:
            result = multiply(**json.loads(call.function.arguments))  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


def scene(
    server: ScriptedServer,
    agent: Agent,
    play: Callable[[HarnessRolloutLoop], Awaitable[None]],
    template: str = QWEN25,
    loop_cls: type[HarnessRolloutLoop] = HarnessRolloutLoop,
) -> None:
    async def trusted(record: ServerRecord) -> None: ...

    async def run() -> None:
        pool = ServerPool(2.0, trusted)
        await pool.update([ServerRecord(1, server.url, 0, 1, "healthy", 0, {})], 0)
        config = AsyncGRPOConfig(output_dir="unused", use_cpu=True)
        tokenizer = family_tokenizer(template)
        loop = loop_cls(config, "scripted", tokenizer, [0], pool, agent=agent, agent_timeout_s=20.0)
        await loop.setup()
        rollout_place.set(RolloutPlace("run", 0, 0))
        try:
            await play(loop)
        finally:
            await loop.close()
            await pool.close()

    asyncio.run(run())


def roll(
    agent: Agent, *answers: str | Answer, template: str = QWEN25, max_model_len: int = 4096, asked: Any = None
) -> Rollout:
    """One rollout of an agent that gets these answers; `asked` collects the sampling params of its requests."""
    rolled, tokenizer = [], family_tokenizer(template)

    async def play(loop: HarnessRolloutLoop) -> None:
        rolled.append(await loop.generate_one(PROMPT, []))

    def script(prompt: list[int], params: dict[str, Any], n: int) -> Answer:
        answer = answers[n - 1]
        return answer if isinstance(answer, Answer) else says(answer, tokenizer)

    with ScriptedServer(script, max_model_len) as server:
        scene(server, agent, play, template)
        if asked is not None:
            asked += [params for _, params in server.requests]
    return rolled[0]


def client(task: AgentTask, **settings: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=task.base_url, api_key=task.api_key, **{"max_retries": 0, **settings})


@pytest.mark.parametrize(
    ("template", "call"), [(QWEN25, HERMES_CALL), (QWEN25, LOOSE_CALL), (QWEN3, LOOSE_CALL), (LLAMA3, LLAMA_CALL)]
)
def test_turns_of_an_agent_are_recorded_as_token_ids(template: str, call: str) -> None:
    """The agent sends its history back in other words; every sampled token still lies in one sample."""
    rollout = roll(calculator_agent, call, "It is 6.", template=template)
    assert [message["role"] for message in rollout.completion] == ["assistant", "tool", "assistant"]
    assert rollout.completion[-1]["content"] == "It is 6." and rollout.reward == 1.0
    assert (rollout.tool_call_count, len(rollout.turns)) == (1, 2)
    assert drift_tokens(rollout.turns) == [0]
    (sample,) = build_sequences(rollout.turns)
    assert sample.num_trained == len(rollout.completion_ids)
    assert "Be brief." in family_tokenizer(template).decode(rollout.turns[0].prompt_ids)


async def streaming_agent(task: AgentTask) -> None:
    client = openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0)
    assert [model.id async for model in client.models.list()] == [task.model]
    parts = [{"type": "text", "text": "2*"}, {"type": "text", "text": "3?"}]
    stream = await client.chat.completions.create(
        model=task.model,
        messages=[{"role": "user", "content": parts}],
        stream=True,  # type: ignore[list-item, misc]
    )
    said = [chunk.choices[0].delta.content async for chunk in stream]
    assert "".join(text or "" for text in said) == "6"


def test_streams_parts_and_async_agents() -> None:
    rollout = roll(streaming_agent, "6")
    assert rollout.completion == [{"role": "assistant", "content": "6"}] and rollout.reward is None


def confused_agent(task: AgentTask) -> None:
    client = openai.OpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0)
    with pytest.raises(openai.BadRequestError, match="images"):
        image = [{"type": "image_url", "image_url": {"url": "x"}}]
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": image}])  # type: ignore[list-item, misc]
    other = openai.OpenAI(base_url=task.base_url.replace(task.api_key, "0"), api_key="0", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="this rollout is over"):
        other.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


def test_what_cannot_be_recorded_is_refused() -> None:
    assert roll(confused_agent).turns == []


def lazy_agent(task: AgentTask) -> str:
    return "fine"


def buggy_agent(task: AgentTask) -> None:
    raise ZeroDivisionError("no steps")


def one_question(task: AgentTask) -> None:
    client = openai.OpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0)
    client.chat.completions.create(model=task.model, messages=task.prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("agent", "error", "words"),
    [
        (lazy_agent, BadInput, "the agent returned 'fine'"),
        (buggy_agent, ZeroDivisionError, "no steps"),
        (one_question, RequestRefused, "the script says no"),
    ],
)
def test_bugs_of_an_agent_are_its_own_and_the_servers_stay_the_servers(
    agent: Agent, error: type[Exception], words: str
) -> None:
    async def play(loop: HarnessRolloutLoop) -> None:
        with pytest.raises(error, match=words):
            await loop.generate_one(PROMPT, [])

    with ScriptedServer(lambda prompt, params, n: Answer(status=400), 4096) as server:
        scene(server, agent, play)


class OwnHooks(HarnessRolloutLoop):
    """Hooks of their own, as the documentation of AsyncRolloutLoop shows them."""

    async def setup(self) -> None:
        self.opened = True

    async def close(self) -> None:
        assert self.opened


def test_a_subclass_with_hooks_of_its_own_is_served() -> None:
    async def play(loop: HarnessRolloutLoop) -> None:
        rollouts = await asyncio.gather(*(loop.generate_one(PROMPT, []) for _ in range(3)))
        assert [rollout.completion[-1]["content"] for rollout in rollouts] == ["6"] * 3

    with ScriptedServer(lambda prompt, params, n: says("6")) as server:
        scene(server, one_question, play, loop_cls=OwnHooks)


def test_what_an_agent_does_to_its_row_is_its_own() -> None:
    def agent(task: AgentTask) -> float:
        task.columns["board"].append("x")
        return float(len(task.columns["board"]))

    async def play(loop: HarnessRolloutLoop) -> None:
        rollout_place.set(RolloutPlace("run", 0, 0, row={"board": []}))
        assert [(await loop.generate_one(PROMPT, [])).reward for _ in range(2)] == [1.0, 1.0]

    with ScriptedServer(lambda prompt, params, n: says("6")) as server:
        scene(server, agent, play)


class Hurried(HarnessRolloutLoop):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "agent_timeout_s": 0.1})


def test_too_many_agents_that_hang_get_advice_that_helps_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run on threads, whatever they are marked with."""
    may_end = threading.Event()

    async def play(loop: HarnessRolloutLoop) -> None:
        with pytest.raises(TooManyHung, match="give the agent's client and tools time limits of their own"):
            await loop.generate_one(PROMPT, [])
        may_end.set()

    monkeypatch.setattr(threads, "MAX_HUNG", 1)
    with ScriptedServer(lambda prompt, params, n: says("6")) as server:
        scene(server, lambda task: may_end.wait(), play, loop_cls=Hurried)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    def script(prompt: list[int], params: dict[str, Any], n: int) -> Answer:
        has_answer = "<tool_response>" in TOKENIZER.decode(prompt)
        return says(f"It is {4 + n % 4}.") if has_answer else says(HERMES_CALL)

    with ScriptedServer(script, 4096) as running:
        yield running


def test_a_worker_trains_the_agent(tmp_path: Path, server: ScriptedServer) -> None:
    world = RunWorld(tmp_path, server, {"num_generations": 4})
    loop = partial(HarnessRolloutLoop, agent=calculator_agent, agent_timeout_s=20.0)
    spec = replace(world.spec(rows(2), []), tokenizer=TOKENIZER, eos_token_ids=(0,), loop_cls=loop)
    assert pickle.loads(pickle.dumps(loop)).keywords["agent"] is calculator_agent
    world.run(spec, lambda: finished(world, 2))
    group = groups.scored_since(world.store, "run", 0)[0]
    assert {rollout.reward for rollout in group.rollouts} == {0.0, 1.0}
    assert group.stats["rewards/rollout/mean"] == group.stats["reward"]
    assert all(sample.num_trained > 10 for sample in samples.pending(world.store, "run"))
