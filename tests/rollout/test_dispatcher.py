"""The worker's loops against a real store and a scripted server, in this process."""

import time
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import BadInput
from agrpo.rollout.dispatcher import WAITS_FOR_TRAINER
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.store import groups, processes, runs, samples, workers
from tests.rollout.run_world import EOS, RunWorld, by_status, finished, length_reward, prompt_ids, rows
from tests.worlds.scripted_server import Answer, ScriptedServer


def test_every_prompt_becomes_a_group_with_samples_and_advantages(world: RunWorld) -> None:
    world.settings = {"num_generations": 3}
    world.run(world.spec(rows(4)), lambda: finished(world, 4))
    found = groups.groups(world.store, "run")
    assert [group.prompt_index for group in found] == [0, 1, 2, 3]
    assert {(group.status, group.version, group.epoch) for group in found} == {("ready", 0, 0)}
    pending = samples.pending(world.store, "run")
    assert len(pending) == 12
    sequences = samples.load(world.store, [sample.sample_id for sample in pending])
    for sequence in sequences:
        assert set(sequence.log_probs[sequence.trained].tolist()) == {-0.5}
        assert sequence.token_ids[-1] == EOS and sequence.trained[-1]
    first = [sequence.advantage for sequence in sequences if sequence.group_id == found[0].id]
    assert sum(first) == pytest.approx(0) and max(first) > 1


def test_measurements_of_a_group_reach_the_store(world: RunWorld) -> None:
    world.settings = {"num_generations": 3}
    world.run(world.spec(rows(1)), lambda: finished(world, 1))
    (group,) = groups.scored_since(world.store, "run", 0)
    stats = group.stats
    assert stats["completions/min_length"] == 2 and stats["completions/max_length"] == 4
    assert stats["completions/clipped_ratio"] == 0 and stats["completions/duplicate_frac"] == 0
    assert stats["reward"] == stats["rewards/length_reward/mean"] == pytest.approx(3.0)
    assert stats["frac_reward_zero_std"] == 0 and "reward_dropped" not in stats
    assert stats["weight:completions/mean_terminated_length"] == 3


def test_equal_rewards_are_dropped_and_the_worker_goes_on(world: RunWorld, server: ScriptedServer) -> None:
    server.script = lambda prompt, params, n: Answer()
    world.run(world.spec(rows(5)), lambda: finished(world, 5))
    assert by_status(world) == {"dropped": 5}
    (first, *_) = groups.scored_since(world.store, "run", 0)
    assert first.drop_reason == "no_signal"
    assert first.stats["frac_reward_zero_std"] == 1 and first.stats["reward_dropped"] == 2.0
    assert first.stats["completions/duplicate_frac"] == 0.5


def test_generation_stops_at_the_allowance_and_goes_on_with_the_next_one(world: RunWorld) -> None:
    spec = world.spec(rows(100))
    group_tokens = 2 * (len(prompt_ids(spec, 0)) + 3)
    runs.set_allowance(world.attempt, 0, 4 * group_tokens)

    def waits_at_step(step: int) -> bool:
        said = workers.states(world.store, "run")
        return any(
            (state.in_flight, state.admission_open, state.allowance_step_seen) == (0, False, step) for state in said
        )

    world.run(spec, lambda: waits_at_step(0))
    first = len(groups.groups(world.store, "run"))
    assert 3 <= first <= 6
    runs.set_allowance(world.attempt, 1, 8 * group_tokens)
    world.run(spec, lambda: waits_at_step(1))
    assert first < len(groups.groups(world.store, "run")) <= 11
    assert by_status(world).keys() == {"ready"}
    said = len(groups.groups(world.store, "run"))

    def until() -> bool:
        if waits_at_step(1):
            runs.set_allowance(world.attempt, 2, 8 * group_tokens)
        return waits_at_step(2)

    world.run(spec, until)
    assert len(groups.groups(world.store, "run")) == said


def test_what_other_workers_generate_counts_against_the_allowance(world: RunWorld) -> None:
    spec = world.spec(rows(100))
    runs.set_allowance(world.attempt, 0, 8 * 2 * (len(prompt_ids(spec, 0)) + 3))
    other = world.register_worker(1)
    workers.state(world.attempt, other, in_flight=6, admission_open=True, data_ended=False, allowance_step_seen=0)

    def own() -> list[workers.WorkerState]:
        return [word for word in workers.states(world.store, "run") if word.process_id == world.process_id]

    def is_held() -> bool:
        held = [beat.at for beat in processes.heartbeats(world.store, "run") if beat.detail == WAITS_FOR_TRAINER]
        return any(at > word.at and word.in_flight == 0 for at in held for word in own())

    world.run(spec, is_held)
    assert 1 <= len(groups.groups(world.store, "run")) <= 4
    assert [word.admission_open for word in own()] == [True]  # the other's groups may come to nothing
    workers.state(world.attempt, other, in_flight=0, admission_open=True, data_ended=False, allowance_step_seen=0)
    world.run(spec, lambda: finished(world, 7))


def test_the_end_of_the_data_is_said_and_nothing_is_generated_twice(world: RunWorld, server: ScriptedServer) -> None:
    world.settings = {"num_train_epochs": 2}
    spec = world.spec(rows(3))

    def ended_since(begin: float) -> bool:
        said = workers.states(world.store, "run")
        return any(state.data_ended and state.in_flight == 0 and state.at > begin for state in said)

    world.run(spec, lambda: ended_since(0))
    found = groups.groups(world.store, "run")
    assert [(group.prompt_index, group.epoch, group.row_index) for group in found] == [
        (0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2),
    ]  # fmt: skip
    assert len(server.requests) == 12
    begin = time.time()
    world.run(spec, lambda: ended_since(begin))
    assert len(server.requests) == 12


def slow_reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    time.sleep(1.0)
    return length_reward(completion_ids)


def test_groups_are_scored_at_the_same_time(world: RunWorld) -> None:
    """Fault 14: 16 groups and a reward of one second take one or two seconds, not 16."""
    quick = world.run(world.spec(rows(16)), lambda: finished(world, 16))
    again = RunWorld(world.folder / "again", world.server) if (world.folder / "again").mkdir() is None else world
    slow = again.run(again.spec(rows(16), [slow_reward]), lambda: finished(again, 16))
    # The very first group runs alone, as its size is not known yet.
    assert slow - quick < 4.0


def test_prompts_without_room_are_skipped_and_completions_are_clipped(world: RunWorld, server: ScriptedServer) -> None:
    spec = world.spec([*rows(1), {"prompt": [{"role": "user", "content": "x" * 100}], "number": 1}, *rows(1)])
    server.max_model_len = len(prompt_ids(spec, 0)) + 5
    world.run(spec, lambda: finished(world, 3))
    reasons = [group.drop_reason for group in groups.groups(world.store, "run")]
    assert reasons == [None, "too_long", None]
    assert {params["max_tokens"] for _, params in server.requests} == {5}


def test_every_request_of_a_group_has_its_own_seed_and_a_replay_has_them_again(
    world: RunWorld, server: ScriptedServer, tmp_path: Path
) -> None:
    """Fault 20."""
    world.run(world.spec(rows(3)), lambda: finished(world, 3))
    seeds = sorted(params["seed"] for _, params in server.requests)
    assert len(set(seeds)) == 6
    server.requests.clear()
    (tmp_path / "again").mkdir()
    again = RunWorld(tmp_path / "again", server)
    again.run(again.spec(rows(3)), lambda: finished(again, 3))
    assert sorted(params["seed"] for _, params in server.requests) == seeds


def test_a_server_on_a_cpu_gets_no_seed(world: RunWorld, server: ScriptedServer) -> None:
    server.device = "cpu"
    world.run(world.spec(rows(1)), lambda: finished(world, 1))
    assert all("seed" not in params for _, params in server.requests)


class EvenRows(AsyncRolloutLoop):
    """Keeps every other row and counts what the hooks see."""

    async def setup(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        self.seen.append((row_index, epoch))
        return row["number"] % 2 == 0


class NoRows(AsyncRolloutLoop):
    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        return False


def test_filtered_prompts_count_as_consumed(world: RunWorld, server: ScriptedServer) -> None:
    world.run(world.spec(rows(4), loop_cls=EvenRows), lambda: finished(world, 4))
    found = [(group.prompt_index, group.drop_reason) for group in groups.groups(world.store, "run")]
    assert found == [(0, None), (1, "filtered"), (2, None), (3, "filtered")]
    assert len(server.requests) == 4


def test_an_epoch_that_refuses_every_prompt_is_an_error(world: RunWorld) -> None:
    """Fault 16."""
    world.settings = {"max_steps": 10}
    with pytest.raises(BadInput, match=r"no prompt of epoch 0 can be used \(3 filtered\)"):
        world.run(world.spec(rows(3), loop_cls=NoRows), lambda: False)
