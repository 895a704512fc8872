import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from agrpo.environments.pool import Visit
from agrpo.errors import BadInput, MalformedAnswer, PromptTooLong, RequestRefused, ServerOutage
from agrpo.records import Message, Rollout, TurnRecord
from agrpo.rollout import groups, retries
from agrpo.rollout.finishing import finished
from agrpo.rollout.groups import GroupFailed, GroupGenerator, root_error
from agrpo.rollout.loop import AsyncRolloutLoop, rollout_place
from agrpo.rollout.members import GeneratedGroup, num_sample_tokens
from agrpo.rollout.pool import ServerPool
from agrpo.rollout.prompts import Prompt, open_prompts
from agrpo.rollout.slots import Slots
from agrpo.rollout.stats import Times
from agrpo.rollout.threads import CallOverran
from agrpo.tools.tally import ToolTally
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from tests.rollout.run_world import rows
from tests.worlds.tiny_model import make_tokenizer

EOS = 1


async def nobody(server: object) -> None:
    raise AssertionError("no server is involved")


class Scripted(AsyncRolloutLoop):
    """Gives out prepared rollouts or raises prepared errors, in order."""

    script: list[Rollout | Exception]
    num_calls = 0

    async def generate_one(self, prompt: list[Message], tools: list[Any], group_id: int = 0) -> Rollout:
        self.num_calls += 1
        prompt.append({"role": "user", "content": "a hook may change its own copy"})
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


class Refusing(Scripted):
    """Every request is refused, with the next prepared error."""

    generate_one = AsyncRolloutLoop.generate_one

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        self.num_calls += 1
        error = self.script.pop(0)
        assert isinstance(error, Exception)
        raise error


class Patient(Scripted):
    """Its rollouts never come back."""

    async def generate_one(self, prompt: list[Message], tools: list[Any], group_id: int = 0) -> Rollout:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets the event")


def rollout(*output_ids: int, reward: float | None = None) -> Rollout:
    turn = TurnRecord([5, 6], list(output_ids), [-0.5] * len(output_ids))
    return Rollout([{"role": "assistant", "content": "text"}], list(output_ids), [turn], reward=reward)


def scripted(*script: Rollout | Exception, num_generations: int = 2, loop_cls: type[Scripted] = Scripted) -> Scripted:
    config = AsyncGRPOConfig(output_dir="unused", use_cpu=True, num_generations=num_generations)
    loop = loop_cls(config, "scripted", make_tokenizer(), [EOS], ServerPool(1.0, nobody))
    loop.script = list(script)
    return loop


def prompt() -> Prompt:
    return open_prompts(rows(1), None).prompt(0)


def generate(loop: Scripted, slots: Slots | None = None) -> GeneratedGroup:
    """One group, in slots that must all come back."""
    slots = slots or Slots(8)
    generator = GroupGenerator(loop, "run", slots)

    async def run() -> GeneratedGroup:
        try:
            return await generator.generate(prompt(), 3, lambda: 7)
        finally:
            await asyncio.sleep(0)
            assert slots.num_used == 0 and generator.num_open == 0

    return asyncio.run(run())


def test_a_group_holds_its_rollouts_in_order_with_its_version_and_columns() -> None:
    generated = generate(scripted(rollout(10, EOS), rollout(11, 12, EOS, reward=0.5)))
    group = generated.group
    assert group.completions_ids == [[10, EOS], [11, 12, EOS]]
    assert (group.model_version, group.group_id, group.row_index) == (7, 3, 0)
    assert group.reward_kwargs == {"number": [0, 0]}
    assert group.prompts == [[{"role": "user", "content": "0"}]] * 2
    assert group.rollout_rewards == [None, 0.5]
    assert num_sample_tokens(group) == 9


def test_the_first_rollout_goes_ahead_from_the_moment_it_has_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 5: a prompt that waited for its turn is not asked for by all its rollouts at once."""
    monkeypatch.setattr(groups, "REFUSAL_WINDOW_S", 0.05)
    loop, slots = scripted(*[RequestRefused("400")] * 4, num_generations=4, loop_cls=Refusing), Slots(4)
    generator = GroupGenerator(loop, "run", slots)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as busy:
            for _ in range(4):
                await busy.enter_async_context(slots)
            waiting = asyncio.create_task(generator.generate(prompt(), 3, lambda: 7))
            await asyncio.wait([waiting], timeout=0.2)
            assert loop.num_calls == 0
        with pytest.raises(GroupFailed):
            await waiting

    asyncio.run(run())
    assert loop.num_calls == 1


def test_slots_that_rollouts_do_not_take_yet_are_lent_to_other_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REFUSAL_WINDOW_S", 5.0)
    generator = GroupGenerator(scripted(num_generations=8, loop_cls=Patient), "run", Slots(16))

    async def run() -> int:
        started = []
        while generator.has_room():
            started.append(asyncio.create_task(generator.generate(prompt(), 3, lambda: 7)))
            for _ in range(10):
                await asyncio.sleep(0)
        for group in started:
            group.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        return len(started)

    # 8 rollouts each, of which 7 wait: 16 slots and 4 lent ones let a third group start, and no fourth.
    assert asyncio.run(run()) == 3
    assert generator.num_open == 0 and generator.has_room()


def test_groups_start_ahead_of_the_slots_that_come_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a whole group ends at once, the next one waits for its slots and not for a claim."""
    monkeypatch.setattr(groups, "REFUSAL_WINDOW_S", 0.0)
    generator = GroupGenerator(scripted(num_generations=8, loop_cls=Patient), "run", Slots(64))

    async def run() -> int:
        started = []
        while generator.has_room():
            started.append(asyncio.create_task(generator.generate(prompt(), 3, lambda: 7)))
            await asyncio.wait(started, timeout=0.02)
        for group in started:
            group.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        return len(started)

    # 64 slots are eight groups; an eighth of them is one more.
    assert asyncio.run(run()) == 9


@pytest.mark.parametrize(
    ("error", "reason", "num_calls"),
    [
        (RequestRefused("400"), "failed", 1),
        (PromptTooLong("600 tokens"), "too_long", 1),
        (MalformedAnswer("no log-probs"), "failed", 2),
        (CallOverran("reset took more than 1 s"), "outage", 2),
        (ConnectionError("the environment is away"), "outage", 3),
    ],
)
def test_a_prompt_that_cannot_be_generated_fails_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, num_calls: int
) -> None:
    """Fault 5: the first rollout goes ahead, so that a refusal is asked for once."""
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0.0, 0.0))
    loop = scripted(*[error] * 8)
    with pytest.raises(GroupFailed) as raised:
        generate(loop)
    assert raised.value.reason == reason and str(error) in str(raised.value)
    assert loop.num_calls == num_calls


def test_a_group_goes_on_with_the_members_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 6: statistics are over those that came back, and nothing stands for the others."""
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", ())
    loop = scripted(rollout(10), ConnectionError("away"), rollout(11, 12, EOS), num_generations=3)
    generated = generate(loop)
    assert generated.group.completions_ids == [[10], [11, 12, EOS]]
    assert generated.failures == ["ConnectionError('away')"]
    assert len(generated.group.prompts) == len(generated.group.reward_kwargs["number"]) == 2
    group = finished(generated, loop, {"a": [0.0, 1.0]}, Times(generated.seconds, 0.0, 0.0))
    assert [entry.advantage for entry in group.rollouts] == pytest.approx([-1.0, 1.0], abs=1e-6)
    assert group.stats["rollout/failed_count"] == 1 and group.stats["reward"] == 0.5


def test_fewer_than_two_members_are_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", ())
    away = ConnectionError("away")
    with pytest.raises(GroupFailed, match="away"):
        generate(scripted(rollout(10), away, away, num_generations=3))


@pytest.mark.parametrize("error", [RequestRefused("400"), PromptTooLong("600 tokens")])
def test_a_refusal_costs_only_its_rollout_where_prompts_differ(error: Exception) -> None:
    """Fault 6: what generate_one makes of a prompt may be another text for every member."""
    loop = scripted(error, rollout(10), rollout(11), num_generations=3)
    assert generate(loop).group.completions_ids == [[10], [11]]


def test_a_refusal_in_an_environment_costs_only_its_rollout() -> None:
    class Room:
        @contextlib.asynccontextmanager
        async def visit(self, row: Any, messages: list[Message], tally: ToolTally) -> AsyncIterator[Visit]:
            yield Visit(SimpleNamespace(tools=[]), messages, reset_s=0.0)  # type: ignore[arg-type]

    loop = scripted(*[PromptTooLong("600 tokens")] * 4, num_generations=4, loop_cls=Refusing)
    generator = GroupGenerator(loop, "run", Slots(8), environments=Room())  # type: ignore[arg-type]
    with pytest.raises(GroupFailed):
        asyncio.run(generator.generate(prompt(), 3, lambda: 7))
    assert loop.num_calls >= 3


def test_a_refusal_of_a_later_turn_costs_only_its_rollout() -> None:
    class Refused(Scripted):
        async def generate_one(self, prompt: list[Message], tools: list[Any], group_id: int = 0) -> Rollout:
            place = rollout_place.get()
            assert place is not None
            place.num_requests = 2
            return await super().generate_one(prompt, tools, group_id)

    loop = scripted(RequestRefused("400"), rollout(10), rollout(11), num_generations=3, loop_cls=Refused)
    assert generate(loop).group.completions_ids == [[10], [11]]


def test_an_outage_of_an_environment_is_outlasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0.0, 0.0))
    loop = scripted(TimeoutError(), ConnectionError(), rollout(10), rollout(11))
    assert generate(loop).group.completions_ids == [[10], [11]]


@pytest.mark.parametrize("error", [ServerOutage("1800 s"), KeyError("a bug in a hook")])
def test_bugs_and_dead_servers_stop_the_worker(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        generate(scripted(error))
    assert "in generate_one for row 0: prompt [{'role': 'user', 'content': '0'}]" in raised.value.__notes__[0]


def test_a_hook_must_return_a_rollout() -> None:
    with pytest.raises(BadInput, match="generate_one returned a str"):
        generate(scripted("text"))  # type: ignore[arg-type]


def test_a_bug_is_more_telling_than_what_follows_from_it() -> None:
    bug = KeyError("a bug")
    nested = ExceptionGroup("", [ServerOutage("away"), ExceptionGroup("", [GroupFailed("failed", "no"), bug])])
    assert root_error(nested) is bug
    assert root_error(bug) is bug


def test_more_rollouts_than_slots_take_turns() -> None:
    loop = scripted(*(rollout(10 + i) for i in range(5)), num_generations=5)
    assert len(generate(loop, Slots(2)).members) == 5
