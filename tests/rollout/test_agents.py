"""Tools and environments through the whole worker: a real store, a scripted server, several turns a rollout."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import RewardError
from agrpo.rollout.worker import WorkerSpec
from agrpo.store import events, groups, samples
from tests.environments.worlds import Away, Increment, Isolated, Silent
from tests.rollout.run_world import RunWorld, by_status, finished, rows
from tests.worlds.chat_families import QWEN25, family_tokenizer
from tests.worlds.scripted_server import Answer, ScriptedServer

TOKENIZER = family_tokenizer(QWEN25)


class Player:
    """Calls one tool in the first turn of a rollout and says something in the second one, a bit longer each time."""

    def __init__(self, *calls: str) -> None:
        self._calls = calls
        self._num_called = 0
        self._num_said: Counter[int] = Counter()

    def __call__(self, prompt: list[int], params: dict[str, Any], n: int) -> Answer:
        if "<tool_response>" in TOKENIZER.decode(prompt):
            self._num_said[0] += 1
            return _says("Done" + "." * (self._num_said[0] % 3))
        call = self._calls[self._num_called % len(self._calls)]
        self._num_called += 1
        return _says(f"<tool_call>\n{call}\n</tool_call>")


def _says(text: str) -> Answer:
    return Answer([*TOKENIZER.encode(text, add_special_tokens=False), 0])


def call(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(max_model_len=4096) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, server: ScriptedServer) -> RunWorld:
    return RunWorld(tmp_path, server)


def agent(world: RunWorld, dataset: Any = None, rewards: Any = (), **parts: Any) -> WorkerSpec:
    world.settings = {"max_steps": 100, **world.settings}
    spec = world.spec(dataset, rewards)
    return replace(spec, tokenizer=TOKENIZER, eos_token_ids=(0,), **parts)


def brief(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [-0.01 * len(ids) for ids in completion_ids]


def square(number: int) -> int:
    """Square a number.

    Args:
        number: Any.
    """
    return number * number


async def now() -> str:
    """The time."""
    return "late"


def test_an_environment_that_owns_its_data_gives_prompt_tools_and_reward(
    world: RunWorld, server: ScriptedServer
) -> None:
    """Fault 25: the task is known only to reset."""
    server.script = Player(call("increment", '{"step": 2}'), call("increment", '{"step": 1}'))
    world.run(agent(world, environment_factory=Increment), lambda: finished(world, 2))
    group = groups.scored_since(world.store, "run", 0)[0]
    assert sorted(rollout.rewards["Increment"] for rollout in group.rollouts) == [0.0, 1.0]  # type: ignore[type-var]
    assert {rollout.tool_call_count for rollout in group.rollouts} == {1}
    assert "Count to 2." in TOKENIZER.decode(server.requests[0][0])
    pending = samples.pending(world.store, "run")
    assert len(pending) >= 2 and all(sample.num_trained > 40 for sample in pending)
    stats = group.stats
    assert stats["rewards/Increment/mean"] == 0.5 and stats["reward"] == 0.5
    assert stats["tools/call_frequency"] == 1 and stats["tools/failure_frequency"] == 0
    assert stats["tools/increment/call_count"] == 2 and stats["tools/increment/latency_s"] >= 0
    assert stats["weight:tools/latency_s"] == 2 and stats["tools/parallel_calls_mean"] == 1
    assert stats["tools/loop_exhausted_frac"] == 0 and stats["env/reset_s"] >= 0 and stats["env/reward_s"] >= 0
    assert stats["rollout/turns_mean"] == 2 and stats["rollout/fork_frac"] == 0


def test_rewards_of_the_environment_and_of_functions_add_up(world: RunWorld, server: ScriptedServer) -> None:
    server.script = Player(call("increment", '{"step": 1}'))
    dataset = [{"prompt": row["prompt"], "target": 1} for row in rows(2)]
    world.run(agent(world, dataset, [brief], environment_factory=Increment), lambda: finished(world, 2))
    for rollout in groups.scored_since(world.store, "run", 0)[0].rollouts:
        assert rollout.rewards["Increment"] == 1.0 and rollout.rewards["brief"] is not None
        assert rollout.reward == pytest.approx(1.0 + rollout.rewards["brief"])
    assert "0Count to 1." in TOKENIZER.decode(server.requests[0][0])


def test_tools_of_the_trainer_and_of_the_rows_environment_are_shown(world: RunWorld, server: ScriptedServer) -> None:
    server.script = Player(call("square", '{"number": 3}'), call("now", "{}"))
    dataset = [{"prompt": rows(1)[0]["prompt"], "environment": name} for name in ("count", "quiet")]
    factories = {"count": Increment, "quiet": Silent}
    world.settings = {"max_steps": -1}
    spec = agent(world, dataset, [brief], tools=(square, now), environment_factory=factories)
    world.run(spec, lambda: finished(world, 2))
    shown = {TOKENIZER.decode(prompt).partition("Call one")[0] for prompt, _ in server.requests}
    assert sorted(("increment" in text, "look" in text) for text in shown) == [(False, True), (True, False)]
    assert all("square" in text and "now" in text for text in shown)
    names = [set(group.rollouts[0].rewards) for group in groups.scored_since(world.store, "run", 0)]
    assert sorted(map(len, names)) == [1, 2]


def test_malformed_calls_are_answered_and_counted(world: RunWorld, server: ScriptedServer) -> None:
    """Fault 24: a quarter of the rollouts call badly, and every one of them goes on."""
    world.settings = {"num_generations": 4}
    good = call("square", '{"number": 3}')
    server.script = Player(good, good, good, '{"name": "square", "arguments": {"number": 3')
    world.run(agent(world, rows(1), [brief], tools=(square,)), lambda: finished(world, 1))
    (group, *_) = groups.scored_since(world.store, "run", 0)
    assert len(group.rollouts) == 4
    assert group.stats["tools/failure_frequency"] == 0.25 and group.stats["weight:tools/failure_frequency"] == 4
    assert group.stats["tools/square/call_count"] == 3


def test_an_outage_of_the_environment_is_outlasted_and_never_scored_zero(
    world: RunWorld, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fault 6."""
    monkeypatch.setattr("agrpo.rollout.retries.RETRY_DELAYS_S", (0.02,) * 3)
    server.script = lambda prompt, params, n: _says("Hi" + "." * (n % 3))
    flag = tmp_path / "away"
    flag.touch()

    def until() -> bool:
        if flag.exists() and finished(world, 2):
            flag.unlink()
        return not flag.exists() and "ready" in by_status(world)

    world.run(agent(world, None, [brief], environment_factory=partial(Away, flag)), until)
    found = groups.scored_since(world.store, "run", 0)
    assert all(rollout.rewards["Away"] == 1.0 for group in found for rollout in group.rollouts)
    dropped = {row.drop_reason for row in groups.groups(world.store, "run") if row.status == "dropped"}
    assert dropped <= {"outage", "no_signal"} and "outage" in dropped


def test_a_dying_process_of_an_environment_has_no_effect_on_other_rollouts(
    world: RunWorld, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agrpo.rollout.retries.RETRY_DELAYS_S", ())
    world.settings = {"num_generations": 3}
    sleep = call("sleep", '{"seconds": 0}')
    server.script = Player(sleep, call("die", "{}"), sleep)
    spec = agent(world, None, [brief], environment_factory=Isolated)
    world.run(spec, lambda: finished(world, 1))
    (group, *_) = groups.scored_since(world.store, "run", 0)
    assert len(group.rollouts) == 2 and group.stats["rollout/failed_count"] == 1
    (said, *_) = [event for event in events.events(world.store, "run") if event.kind == "rollout_failed"]
    assert "goes on without a rollout: ChildDied('the process died')" in said.message


class Buggy(Increment):
    def get_reward(self) -> float:
        raise ZeroDivisionError("no episodes")


class Endless(Increment):
    def get_reward(self) -> float:
        return math.nan


@pytest.mark.parametrize(
    ("factory", "error", "note"),
    [(Buggy, ZeroDivisionError, "in Buggy.get_reward for prompt"), (Endless, RewardError, "")],
)
def test_a_bug_of_an_environment_stops_the_run(
    world: RunWorld, server: ScriptedServer, factory: Callable[[], Any], error: type[Exception], note: str
) -> None:
    server.script = lambda prompt, params, n: _says("Hi")
    with pytest.raises(error) as raised:
        world.run(agent(world, environment_factory=factory), lambda: False)
    assert any(note in line for line in getattr(raised.value, "__notes__", [""]))
