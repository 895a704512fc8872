import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agrpo.errors import PromptTooLong
from agrpo.records import Rollout
from agrpo.rollout.loop import AsyncRolloutLoop, RolloutPlace, rollout_place
from agrpo.rollout.pool import ServerPool
from agrpo.store.servers import ServerRecord
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from tests.worlds.scripted_server import Answer, ScriptedServer
from tests.worlds.tiny_model import make_tokenizer

PROMPT = [{"role": "user", "content": "2+2?"}]


async def trusted(server: ServerRecord) -> None:
    raise AssertionError("the server serves what was published")


def scene(
    server: ScriptedServer, play: Callable[[AsyncRolloutLoop], Awaitable[None]], **settings: Any
) -> AsyncRolloutLoop:
    """Play with a loop that has one scripted server."""

    async def run() -> AsyncRolloutLoop:
        pool = ServerPool(10.0, trusted)
        await pool.update([ServerRecord(1, server.url, 0, 1, "healthy", 0, {})], 0)
        config = AsyncGRPOConfig(output_dir="unused", use_cpu=True, **{"max_completion_length": 8, **settings})
        loop = AsyncRolloutLoop(config, "scripted", make_tokenizer(), [1, 9], pool)
        try:
            await play(loop)
        finally:
            await pool.close()
        return loop

    return asyncio.run(run())


def test_a_rollout_is_the_rendered_prompt_and_the_decoded_answer() -> None:
    answer = make_tokenizer().encode("4", add_special_tokens=False)

    async def play(loop: AsyncRolloutLoop) -> None:
        rollout = await loop.generate_one(PROMPT, [])
        assert rollout.completion == [{"role": "assistant", "content": "4"}]
        assert rollout.completion_ids == [*answer, 1]
        (turn,) = rollout.turns
        assert loop.tokenizer.decode(turn.prompt_ids) == "<start>user:2+2?<eos><start>assistant:"

    with ScriptedServer(lambda prompt, params, n: Answer([*answer, 1])) as server:
        scene(server, play)


def test_the_settings_of_the_config_are_sent_and_no_top_log_probs_without_centring() -> None:
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1}

    async def play(loop: AsyncRolloutLoop) -> None:
        await loop.generate_one_turn([5, 6])

    with ScriptedServer() as server:
        scene(server, play, **settings)
        scene(server, play, num_sampler_logprobs=4)
        scene(server, play, score_centering=False)
    (_, first), (_, centred), (_, clipped) = server.requests
    assert {name: first[name] for name in settings} == settings
    assert first["max_tokens"] == 8
    assert centred["logprobs"] == 5 and clipped["logprobs"] == 0


def test_the_first_request_needs_room_and_a_later_one_without_it_is_cut() -> None:
    async def play(loop: AsyncRolloutLoop) -> None:
        rollout_place.set(RolloutPlace("run", 0, 0))
        with pytest.raises(PromptTooLong, match=r"20 tokens leaves no room under the server's max_model_len 20"):
            await loop.generate_one_turn([5] * 20)
        turn = await loop.generate_one_turn([5] * 20)
        assert (turn.output_ids, turn.finish_reason) == ([], "length")
        assert not loop.is_terminated(Rollout([], [], [turn]))
        await loop.generate_one_turn([5] * 17)

    with ScriptedServer(max_model_len=20) as server:
        scene(server, play)
    assert [params["max_tokens"] for _, params in server.requests] == [3]


def test_a_prompt_that_whoever_asks_extends_stays_what_was_sent() -> None:
    async def play(loop: AsyncRolloutLoop) -> None:
        ids = [5, 6]
        turns = [await loop.generate_one_turn(ids)]
        ids += turns[0].output_ids
        turns.append(await loop.generate_one_turn(ids))
        assert [turn.prompt_ids for turn in turns] == [prompt for prompt, _ in server.requests]

    with ScriptedServer(lambda prompt, params, n: Answer([7, 1])) as server:
        scene(server, play)
    assert server.requests[0][0] == [5, 6]


def test_most_tokens_are_those_of_its_own_request() -> None:
    async def play(loop: AsyncRolloutLoop) -> None:
        place = RolloutPlace("run", 0, 0, max_tokens=5)
        rollout_place.set(place)
        turn = asyncio.create_task(loop.generate_one_turn([5]))
        await asyncio.sleep(0)
        place.max_tokens = 7
        await turn

    with ScriptedServer() as server:
        scene(server, play)
    assert [params["max_tokens"] for _, params in server.requests] == [5]


def test_any_end_token_at_the_end_of_the_last_turn_terminates() -> None:
    """Fault 23."""

    async def play(loop: AsyncRolloutLoop) -> None:
        for ids, expected in (([10, 9], True), ([10, 1], True), ([9, 10], False), ([], False)):
            turns = [await loop.generate_one_turn([5])] if ids else []
            assert loop.is_terminated(Rollout([], ids, turns)) is expected

    endings = iter([[10, 9], [10, 1], [9, 10]])
    with ScriptedServer(lambda prompt, params, n: Answer(next(endings))) as server:
        scene(server, play)


@pytest.mark.parametrize("keywords", [{"chat_template": "{{ greeting }}", "greeting": "hi"}, '{"chat_template": "hi"}'])
def test_keywords_reach_the_chat_template(keywords: dict[str, Any] | str) -> None:
    async def play(loop: AsyncRolloutLoop) -> None:
        assert loop.tokenizer.decode(loop.chat.render(PROMPT)) == "hi"

    with ScriptedServer() as server:
        scene(server, play, chat_template_kwargs=keywords)


def test_seeds_differ_by_run_prompt_member_and_turn() -> None:
    places = [RolloutPlace(run, index, member) for run in ("a", "b") for index in (0, 1) for member in (0, 1)]
    seeds = [place.next_seed() for place in places for _ in range(3)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert RolloutPlace("a", 0, 0).next_seed() == seeds[0]
