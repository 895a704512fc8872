"""A ledger that holds, and one damaged by hand in every way that verify must see."""

from dataclasses import replace

import pytest
from sqlalchemy import text

from agrpo.store import drafts, forks, groups, leases, policies, runs, samples, steps
from agrpo.store.verify import verify
from tests.worlds.small_groups import (
    DEAD,
    generate,
    group,
    name_checkpoint,
    scored,
    start_run,
    start_worker,
    turn,
    two_samples,
)


@pytest.fixture
def trained(attempt, worker):
    """Two steps of two groups, a stale one dropped, one pending, one claimed, one skipped; a checkpoint of step 1."""
    policies.publish(attempt, 0, 0, "start")
    generate(attempt, worker, 6)
    for step in (1, 2):
        pending = samples.pending(attempt.store, attempt.run_id)[:4]
        rows = [steps.StepRow(0, 0, position, sample.sample_id) for position, sample in enumerate(pending)]
        steps.record(attempt, step, rows, policy_version=step - 1)
        steps.finish(attempt, step, f"weights {step}", {})
        policies.publish(attempt, step, step, f"weights {step}")
    stale = samples.pending(attempt.store, attempt.run_id)[0]
    samples.drop(attempt, [stale.sample_id], "stale")
    name_checkpoint(attempt, 1, "checkpoint-1", "digest")
    groups.claim(attempt, worker, 1)
    (skipped,) = groups.claim(attempt, worker, 1)
    groups.skip(attempt, skipped.group_id, "too_long")
    (forked,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(forked, two_samples(), two_samples(), reason="no_signal"))
    return attempt


def test_a_sound_ledger_holds(trained):
    found = verify(trained.store, trained.run_id)
    assert found.problems == []
    assert (found.num_groups, found.num_samples, found.num_steps, found.num_turns) == (9, 16, 2, 16)
    # Six groups of [4, 5] and [6], and twice [4, 5], then [9] and [6]; the prompt itself is stored with the group.
    assert found.num_tokens == 6 * 3 + 2 * (2 + 1 + 1)
    assert found.holds


def test_an_empty_run_holds(store):
    assert verify(store, start_run(store).run_id).holds


DAMAGE = [
    ("DELETE FROM step_samples WHERE step = 2 AND position = 0", {"trained_once", "row_gap"}),
    ("UPDATE samples SET step = 2 WHERE id = 1", {"step_members"}),
    ("UPDATE samples SET status = 'pending', step = NULL WHERE id = 1", {"step_members", "group_status"}),
    ("UPDATE samples SET drop_reason = 'both' WHERE id = 1", {"sample_status"}),
    ("UPDATE samples SET drop_reason = NULL WHERE status = 'dropped' AND id < 13", {"sample_status"}),
    ("UPDATE samples SET status = 'pending', drop_reason = NULL WHERE id = 13", {"one_fate", "group_status"}),
    ("UPDATE groups SET status = 'ready' WHERE prompt_index = 0", {"group_status"}),
    ("UPDATE groups SET prompt_index = 100 WHERE status = 'claimed'", {"prompt_gap"}),
    ("DELETE FROM groups WHERE status = 'claimed'", {"prompt_gap", "prompt_end"}),
    ("UPDATE groups SET drop_reason = NULL WHERE drop_reason = 'too_long'", {"drop_reason"}),
    ("UPDATE groups SET ready_order = 1 WHERE prompt_index = 1", {"ready_order"}),
    ("UPDATE runs SET last_ready_order = 99", {"ready_order_gap"}),
    ("UPDATE steps SET finished_at = NULL WHERE step = 1", {"unfinished_step", "cursor"}),
    ("UPDATE policies SET version = 7 WHERE version = 2", {"version_gap", "current_version"}),
    ("UPDATE steps SET policy_version = 9 WHERE step = 2", {"staleness"}),
    ("UPDATE groups SET version = 1 WHERE prompt_index = 0", {"staleness"}),
    ("DELETE FROM checkpoints", {"cursor"}),
    ("UPDATE rollouts SET status = 'open' WHERE group_id = 1", {"unscored_rollout"}),
    ("UPDATE samples SET num_trained = 50 WHERE id = 1", {"trained_tokens", "payload"}),
    ("UPDATE turns SET output_ids = prompt_suffix WHERE group_id = 1 AND member = 0", {"payload"}),
    ("UPDATE groups SET prompt_ids = (SELECT output_ids FROM turns WHERE group_id = 2 AND member = 0) WHERE id = 1",
     {"payload"}),
    ("UPDATE turns SET top_ids = output_ids, digest = NULL WHERE group_id = 1 AND member = 1", set()),
    ("UPDATE turns SET output_mask = prompt_suffix, digest = NULL WHERE group_id = 1 AND member = 1", {"payload"}),
    ("DELETE FROM turns WHERE group_id = 1 AND member = 0", {"payload"}),
    ("UPDATE groups SET prompt_ids = NULL WHERE id = 1", {"payload"}),
    ("UPDATE groups SET prompt_ids = NULL WHERE id = 6", {"payload"}),
    ("UPDATE groups SET prompt_ids = NULL, pruned_at = 1 WHERE id = 1", set()),
    ("UPDATE groups SET prompt_ids = NULL, pruned_at = 1 WHERE id = 3", {"pruned"}),
    ("UPDATE groups SET prompt_ids = NULL, pruned_at = 1 WHERE id = 6", {"pruned"}),
    ("DELETE FROM samples WHERE group_id = 6 AND position = 0", {"sample_gap", "payload"}),
    ("DELETE FROM samples WHERE group_id = 6 AND position = 1", {"payload"}),
    ("UPDATE turns SET num_shared = 4 WHERE group_id = 1 AND member = 0", {"payload"}),
    ("UPDATE turns SET num_shared = 2 WHERE group_id = 1 AND member = 0", {"payload"}),
    ("UPDATE turns SET num_shared = 1 WHERE turn = 1 AND member = 0", {"payload"}),
    ("UPDATE turns SET turn = 2 WHERE turn = 1 AND member = 0", {"payload"}),
    ("UPDATE policies SET digest = 'others' WHERE version = 1", {"published_weights"}),
    ("UPDATE policies SET step = 3 WHERE version = 2", {"policy_step"}),
    ("UPDATE steps SET finished_at = NULL WHERE step = 2", set()),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), DAMAGE, ids=[statement[:60] for statement, _ in DAMAGE])
def test_damage_is_found(trained, statement, expected):
    with trained.store.write() as connection:
        assert connection.execute(text(statement)).rowcount >= 1
    found = verify(trained.store, trained.run_id)
    assert {problem.check for problem in found.problems} == expected
    assert all(problem.row and problem.says for problem in found.problems)


def test_the_last_step_of_a_finished_run_is_finished(trained):
    with trained.store.write() as connection:
        connection.execute(text("UPDATE runs SET status = 'finished'"))
        connection.execute(text("UPDATE steps SET finished_at = NULL WHERE step = 2"))
    (problem,) = verify(trained.store, trained.run_id).problems
    assert (problem.check, problem.row) == ("unfinished_step", {"step": 2})


def test_a_step_after_the_fork_with_a_sample_of_the_other_run_is_found(trained):
    store = trained.store
    forks.fork(store, trained.run_id, 1, "fork", {"name": "fork"}, "hash", "d", ("checkpoint-1", "digest"))
    assert verify(store, "fork").problems == []
    steps.record(leases.acquire(store, "fork", DEAD), 2, [], 0)
    with store.write() as connection:
        taken = "SELECT 'fork', step, micro_batch, rank, position, sample_id FROM step_samples"
        columns = "run_id, step, micro_batch, rank, position, sample_id"
        connection.execute(text(f"INSERT INTO step_samples ({columns}) {taken} WHERE run_id = 'small' AND step = 2"))
    assert {problem.check for problem in verify(store, "fork").problems} == {"foreign_sample"}


def test_weights_that_a_replay_made_anew_are_no_damage(trained):
    steps.finish(trained, 2, "others", {})
    assert verify(trained.store, trained.run_id).problems == []


def test_two_samples_that_train_the_same_token_are_found_though_a_mask_makes_room_for_both(attempt, worker):
    """Of six tokens the mask leaves four; a sample that says it trains a fifth trains one of them twice."""
    first = replace(turn([1, 2, 3], [4, 5, 6]), output_mask=[1, 0, 0])
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, scored([first, turn([1, 2, 9], [7, 8, 9])])))
    assert verify(attempt.store, attempt.run_id).problems == []
    with attempt.store.write() as connection:
        connection.execute(text("UPDATE samples SET num_trained = 2 WHERE part = 0"))
    assert {problem.check for problem in verify(attempt.store, attempt.run_id).problems} == {"payload"}


def test_tokens_that_nothing_can_train_are_no_damage(attempt, worker):
    """The first turn has no log-probability to train with, so it gives no sample; the last one gave no tokens."""
    lost = replace(turn([1, 2, 3], [4]), output_log_probs=[float("nan")])
    turns = [lost, turn([1, 2, 9], [7, 8]), turn([1, 2, 9, 7, 8, 5], [])]
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, scored(turns)))
    assert [sample.num_trained for sample in samples.pending(attempt.store, attempt.run_id)] == [2]
    assert verify(attempt.store, attempt.run_id).problems == []


def test_drafts_are_read_too(attempt, worker):
    (claim,) = groups.claim(attempt, worker, 1)
    first, second = turn([1, 2, 3], [4]), turn([1, 2, 3, 4, 5], [6])
    new = [drafts.NewTurn(claim.group_id, 0, 0, 0, None, first), drafts.NewTurn(claim.group_id, 0, 1, 0, first, second)]
    drafts.add(attempt, new)
    assert verify(attempt.store, attempt.run_id).problems == []
    with attempt.store.write() as connection:
        connection.execute(text("UPDATE turns SET num_shared = 5 WHERE turn = 1"))
    assert {problem.check for problem in verify(attempt.store, attempt.run_id).problems} == {"payload"}


SHARED = [
    ("UPDATE turns SET output_ids = prompt_suffix WHERE group_id = 1 AND member = 0", {"payload"}),
    ("DELETE FROM step_samples WHERE run_id = 'fork' AND step = 1 AND position = 3", {"shared_step"}),
    ("DELETE FROM step_samples WHERE run_id = 'fork' AND step = 1 AND position = 0", {"shared_step", "row_gap"}),
]


@pytest.mark.parametrize(("statement", "expected"), SHARED, ids=[statement[:60] for statement, _ in SHARED])
def test_what_a_fork_shares_is_read_too(trained, statement, expected):
    forks.fork(trained.store, trained.run_id, 1, "fork", {}, "hash", "d", ("checkpoint", "digest"))
    found = verify(trained.store, "fork")
    assert (found.problems, found.num_turns) == ([], 4)
    with trained.store.write() as connection:
        assert connection.execute(text(statement)).rowcount == 1
    assert {problem.check for problem in verify(trained.store, "fork").problems} == expected


def test_a_missing_step_is_found(trained):
    with trained.store.write() as connection:
        connection.execute(text("DELETE FROM step_samples WHERE step = 1"))
        connection.execute(text("DELETE FROM steps WHERE step = 1"))
    found = {problem.check for problem in verify(trained.store, trained.run_id).problems}
    assert found == {"step_gap", "trained_once", "cursor", "policy_step"}


def test_other_runs_do_not_disturb(trained):
    other = start_run(trained.store, "other")
    generate(other, start_worker(other), 2)
    assert verify(trained.store, "other").holds
    with trained.store.write() as connection:
        connection.execute(text("UPDATE samples SET step = 9 WHERE run_id = 'small' AND status = 'trained'"))
    assert verify(trained.store, "other").holds
    assert not verify(trained.store, "small").holds


def test_the_staleness_bound_is_the_runs_own(store):
    runs.create_run(store, "strict", {"trainer": {"max_staleness": 0}}, "hash", "d")
    from agrpo.store import leases
    from tests.worlds.small_groups import DEAD

    attempt = leases.acquire(store, "strict", DEAD)
    generate(attempt, start_worker(attempt), 1)
    ids = [sample.sample_id for sample in samples.pending(store, "strict")]
    steps.record(attempt, 1, [steps.StepRow(0, 0, i, sample_id) for i, sample_id in enumerate(ids)], policy_version=1)
    assert {problem.check for problem in verify(store, "strict").problems} == {"staleness"}
