"""What goes wrong around the worker's loops: servers, rewards, leases and other workers."""

import math
from collections import Counter
from typing import Any

import pytest

from agrpo.errors import BadInput, LeaseLost, RewardError
from agrpo.store import events, groups, leases, processes, samples, servers, steps, workers
from tests.rollout.run_world import RunWorld, Varied, by_status, finished, length_reward, prompt_ids, rows
from tests.worlds.scripted_server import Answer, ScriptedServer


def test_one_refused_prompt_is_recorded_and_the_run_goes_on(world: RunWorld, server: ScriptedServer) -> None:
    """Fault 5."""
    world.settings = {"num_generations": 4}
    spec = world.spec(rows(6))
    bad, varied = prompt_ids(spec, 2), Varied()
    server.script = lambda prompt, params, n: Answer(status=400) if prompt == bad else varied(prompt, params, n)
    world.run(spec, lambda: finished(world, 6))
    assert sum(prompt == bad for prompt, _ in server.requests) <= 2
    failed = [group for group in groups.groups(world.store, "run") if group.drop_reason == "failed"]
    assert [group.prompt_index for group in failed] == [2]
    assert by_status(world) == {"ready": 5, "dropped": 1}
    assert any("the script says no" in event.message for event in events.events(world.store, "run"))


def test_a_killed_server_gives_its_slots_back_and_its_rollouts_are_generated_again(
    world: RunWorld, server: ScriptedServer
) -> None:
    """Fault 15."""
    quick, hanging = Varied(), Varied(after_s=60.0)
    server.script = lambda prompt, params, n: (hanging if n > 6 else quick)(prompt, params, n)
    killed = False

    def until() -> bool:
        nonlocal killed
        if not killed and len(server.requests) >= 12:
            server.kill()
            server.script = Varied()
            server.start()
            killed = True
        return killed and all(state.data_ended and state.in_flight == 0 for state in workers.states(world.store, "run"))

    world.run(world.spec(rows(8)), until)
    assert by_status(world) == {"ready": 8}


def test_unconfirmed_servers_are_waited_for(world: RunWorld, server: ScriptedServer) -> None:
    servers.register(world.attempt, server.url, 0)

    def waits() -> bool:
        beats = processes.heartbeats(world.store, "run")
        return any(beat.loop == "generation" and "confirmed weights" in (beat.detail or "") for beat in beats)

    confirmed = False

    def until() -> bool:
        nonlocal confirmed
        if not confirmed and waits():
            assert server.requests == []
            servers.set_state(world.attempt, world.server_id, "healthy")
            servers.confirm_version(world.attempt, world.server_id, 0)
            confirmed = True
        return finished(world, 2)

    world.run(world.spec(rows(2)), until)


def test_samples_of_a_server_that_lost_its_weights_are_refused(world: RunWorld, server: ScriptedServer) -> None:
    server.weight_version = "default"

    def distrusted() -> bool:
        return servers.servers(world.store, "run")[0].weight_version is None

    world.run(world.spec(rows(2)), distrusted)
    assert by_status(world) == {"claimed": 1}
    server.weight_version = "0"
    servers.confirm_version(world.attempt, world.server_id, 0)
    processes.ended(world.attempt, world.process_id, 0, "test")
    world.process_id = world.register_worker(1)
    world.run(world.spec(rows(2)), lambda: finished(world, 2))
    assert by_status(world) == {"ready": 2}


def test_malformed_answers_are_asked_for_once_more_and_odd_tokens_are_left_out(
    world: RunWorld, server: ScriptedServer
) -> None:
    """Fault 21."""
    spec = world.spec(rows(3))
    short, without = prompt_ids(spec, 0), prompt_ids(spec, 1)
    good, tries = Varied(11, changes={}), Counter[int]()

    def script(prompt: list[int], params: dict[str, Any], n: int) -> Answer:
        answer = good(prompt, params, n)
        tries[prompt == short] += 1
        answer.log_probs = [-0.5] * (len(answer.token_ids) - 2) + [None, -9999.0]
        if prompt == short and tries[True] == 1:
            answer.log_probs = [-0.5]
        return Answer(changes={"logprobs": None}) if prompt == without else answer

    server.script = script
    world.run(spec, lambda: finished(world, 3))
    found = {group.prompt_index: (group.status, group.drop_reason) for group in groups.groups(world.store, "run")}
    assert found == {0: ("ready", None), 1: ("dropped", "failed"), 2: ("ready", None)}
    stats = groups.scored_since(world.store, "run", 0)[-1].stats
    assert stats["rollout/refused_tokens_count"] == 4


def broken_reward(number: list[int], **columns: Any) -> list[float]:
    if 2 in number:
        raise KeyError("a bug")
    return [0.0, 1.0]


def test_a_bug_in_a_reward_stops_the_worker_with_its_input(world: RunWorld) -> None:
    with pytest.raises(KeyError, match="a bug") as raised:
        world.run(world.spec(rows(4), [broken_reward]), lambda: False)
    assert "reward function 'broken_reward' for row 2" in raised.value.__notes__[0]


def nan_reward(completions: list[Any], **columns: Any) -> list[float]:
    return [math.nan] * len(completions)


def test_what_is_no_reward_is_named(world: RunWorld) -> None:
    """Fault 22."""
    with pytest.raises(RewardError, match="'nan_reward' returned nan for completion 0"):
        world.run(world.spec(rows(1), [nan_reward]), lambda: False)


def away_reward(completions: list[Any], **columns: Any) -> list[float]:
    raise ConnectionError("the judge is away")


def test_an_outage_leaves_groups_unscored_and_never_scores_them_zero(
    world: RunWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 6."""
    monkeypatch.setattr("agrpo.rollout.retries.RETRY_DELAYS_S", (0.01, 0.01))
    world.run(world.spec(rows(2), [away_reward, length_reward]), lambda: finished(world, 2))
    found = groups.scored_since(world.store, "run", 0)
    assert [group.drop_reason for group in found] == ["unscored"] * 2
    assert all(math.isnan(rollout.reward) for group in found for rollout in group.rollouts)
    assert all("reward" not in group.stats for group in found)


def none_reward(completions: list[Any], **columns: Any) -> list[None]:
    return [None] * len(completions)


def even_reward(completion_ids: list[list[int]], number: list[int], **columns: Any) -> list[float | None]:
    return [None if number[0] % 2 else float(len(ids)) for ids in completion_ids]


def test_rewards_that_never_apply_are_left_out(world: RunWorld) -> None:
    world.run(world.spec(rows(2), [even_reward]), lambda: finished(world, 2))
    reasons = {group.drop_reason: "reward" in group.stats for group in groups.scored_since(world.store, "run", 0)}
    assert reasons == {None: True, "no_reward": False}


def test_an_epoch_without_any_reward_is_an_error(world: RunWorld) -> None:
    """An agent that returns nothing, and no reward functions, would go on for ever."""
    world.settings = {"max_steps": 10}
    with pytest.raises(BadInput, match=r"no prompt of epoch 0 can be used \(3 no_reward\).*agent gave a reward"):
        world.run(world.spec(rows(3), [none_reward]), lambda: False)


def test_an_epoch_without_any_reward_is_an_event_once_the_run_has_trained(world: RunWorld) -> None:
    """A judge may be away for as long as an epoch takes."""
    world.settings = {"max_steps": 10}
    steps.record(world.attempt, 1, [], 0)
    steps.finish(world.attempt, 1, "digest", {})

    def told() -> list[str]:
        return [event.message for event in events.events(world.store, "run") if event.kind == "epoch_useless"]

    world.run(world.spec(rows(2), [none_reward]), lambda: any("epoch 1" in words for words in told()))
    assert told()[0].startswith("no prompt of epoch 0 can be used (2 no_reward): nothing of it is trained. The last")


def test_a_lost_lease_stops_the_worker_at_once(world: RunWorld, server: ScriptedServer) -> None:
    server.script = lambda prompt, params, n: Answer(after_s=0.2)
    taken = False

    def until() -> bool:
        nonlocal taken
        if not taken and server.requests:
            leases.release(world.attempt, "stopped")
            leases.acquire(world.store, "run", leases.this_process())
            taken = True
        return False

    with pytest.raises(LeaseLost):
        world.run(world.spec(rows(4)), until)
    assert "ready" not in by_status(world)


def test_claims_of_a_dead_worker_are_taken_by_the_next_one(world: RunWorld, server: ScriptedServer) -> None:
    """Fault 4: nothing that was finished is generated again, nothing that was in flight is lost."""
    quick, hanging = Varied(), Varied(after_s=60.0)
    server.script = lambda prompt, params, n: (hanging if n > 8 else quick)(prompt, params, n)
    world.run(world.spec(rows(8)), lambda: finished(world, 4) and len(server.requests) > 8)
    processes.ended(world.attempt, world.process_id, -9, "killed")
    kept = samples.pending(world.store, "run")
    world.process_id = world.register_worker(1)
    server.script = Varied()
    world.run(world.spec(rows(8)), lambda: finished(world, 8))
    assert [group.prompt_index for group in groups.groups(world.store, "run")] == list(range(8))
    assert samples.pending(world.store, "run")[: len(kept)] == kept
    assert by_status(world) == {"ready": 8}
