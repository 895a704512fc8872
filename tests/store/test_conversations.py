"""Rollouts as people read them: every one has a fate, on both databases."""

from agrpo.store import Attempt, conversations, forks, groups, samples, steps
from agrpo.store.steps import StepRow
from tests.worlds.small_groups import generate, group, scored, start_worker, turn


def fates(attempt: Attempt, **which: object) -> list[tuple[int, int | None, str, str | None, list[int]]]:
    found = conversations.find(attempt.store, attempt.run_id, **which)  # type: ignore[arg-type]
    return [(one.prompt_index, one.member, one.status, one.reason, one.steps) for one in found]


def test_every_rollout_says_what_became_of_it(attempt: Attempt) -> None:
    worker = start_worker(attempt)
    generate(attempt, worker, 2)  # samples 1 to 4
    steps.record(attempt, 1, [StepRow(0, 0, 0, 1)], 0)
    samples.drop(attempt, [2], "stale")
    [filtered] = groups.claim(attempt, worker, 1)
    groups.skip(attempt, filtered.group_id, "filtered")
    assert fates(attempt) == [
        (0, 0, "trained", None, [1]),
        (0, 1, "dropped", "stale", []),
        (1, 0, "pending", None, []),
        (1, 1, "pending", None, []),
        (2, None, "dropped", "filtered", []),
    ]
    assert fates(attempt, step=1) == [(0, 0, "trained", None, [1])]
    assert [fate[:2] for fate in fates(attempt, status="pending")] == [(1, 0), (1, 1)]
    assert {fate[3] for fate in fates(attempt, status="dropped")} == {"stale", "filtered"}
    first = samples.pending(attempt.store, attempt.run_id)[0].group_id
    assert [fate[:2] for fate in fates(attempt, group=first)] == [(1, 0), (1, 1)]


def test_the_last_ones_come_when_only_some_are_wanted(attempt: Attempt) -> None:
    generate(attempt, start_worker(attempt), 3)
    assert [fate[:2] for fate in fates(attempt, limit=2)] == [(2, 0), (2, 1)]


def test_a_conversation_comes_with_its_rewards_and_versions(attempt: Attempt) -> None:
    worker = start_worker(attempt)
    [claim] = groups.claim(attempt, worker, 1)
    versioned = turn([1, 2, 3], [4, 5])
    versioned.weight_versions.extend([("0", 0, 1), ("1", 1, 2)])
    groups.commit(attempt, group(claim, scored([versioned], reward=0.5, advantage=0.25), version=0))
    [found] = conversations.find(attempt.store, attempt.run_id)
    assert found.prompt == [{"role": "user", "content": "0"}]
    assert found.completion == [{"role": "assistant", "content": "x"}]
    assert (found.rewards, found.reward, found.advantage) == ({"exact": 0.5}, 0.5, 0.25)
    assert (found.version, found.token_versions, found.num_turns, found.num_generated) == (0, ["0", "1"], 1, 2)
    assert conversations.reward_range(attempt.store, attempt.run_id) == (0.5, 0.5)


def test_a_fork_shows_the_rollouts_that_it_shares(attempt: Attempt) -> None:
    generate(attempt, start_worker(attempt), 2)
    steps.record(attempt, 1, [StepRow(0, 0, 0, 1), StepRow(0, 0, 1, 2)], 0)
    steps.finish(attempt, 1, "digest", {})
    forks.fork(attempt.store, attempt.run_id, 1, "other", {}, "hash", "runs/other", ("checkpoint", "digest"))
    found = conversations.find(attempt.store, "other", status="trained")
    assert [(one.member, one.steps) for one in found] == [(0, [1]), (1, [1])]
