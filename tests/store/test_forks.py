"""A run that shares another one's first steps."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from agrpo.errors import BadInput, StatusConflict
from agrpo.store import checkpoints, forks, groups, leases, policies, runs, samples, steps
from agrpo.store.verify import verify
from tests.worlds.small_groups import DEAD, generate, group, start_worker, two_samples


@pytest.fixture
def parent(attempt, worker):
    """Prompts 0, 1 and 3 in step 1, prompt 2 too long, 4 in step 2, 5 pending."""
    policies.publish(attempt, 0, 0, "start")
    generate(attempt, worker, 2)
    (skipped,) = groups.claim(attempt, worker, 1)
    groups.skip(attempt, skipped.group_id, "too_long")
    generate(attempt, worker, 1)
    train(attempt, 1)
    generate(attempt, worker, 1)
    train(attempt, 2)
    generate(attempt, worker, 1)
    return attempt


def train(attempt, step):
    pending = samples.pending(attempt.store, attempt.run_id)
    rows = [steps.StepRow(0, 0, position, sample.sample_id) for position, sample in enumerate(pending)]
    steps.record(attempt, step, rows, policy_version=0)
    steps.finish(attempt, step, f"weights {step}", {})


def fork(parent, step, name="fork"):
    checkpoint = ("runs/fork/checkpoint", "digest") if step else None
    forks.fork(parent.store, parent.run_id, step, name, {"name": name}, "hash", "runs/fork", checkpoint)
    return leases.acquire(parent.store, name, DEAD)


def test_it_waits_for_a_write_of_the_parent_which_may_be_pruning(parent):
    with ThreadPoolExecutor(1) as pool:
        with parent.write():
            forking = pool.submit(fork, parent, 1)
            with pytest.raises(TimeoutError):
                forking.result(timeout=0.5)
        assert forking.result(timeout=10).run_id == "fork"


def test_it_stands_where_the_parent_stood(parent):
    child = fork(parent, 1)
    store = parent.store
    found = [(g.prompt_index, g.status, g.drop_reason) for g in groups.groups(store, "fork")]
    assert found == [(0, "trained", None), (1, "trained", None), (2, "dropped", "too_long"), (3, "trained", None)]
    assert steps.rows(store, "fork", 1) == steps.rows(store, parent.run_id, 1)
    assert steps.digests(store, "fork") == {1: "weights 1"}
    cursor = checkpoints.cursor(store, "fork")
    assert cursor is not None and (cursor.step, cursor.trained_prompt_index) == (1, 4)
    run = runs.get_run(store, "fork")
    assert (run.forked_from, run.forked_step, run.policy_version, run.step) == ("small", 1, -1, 1)
    assert verify(store, "fork").problems == verify(store, "small").problems == []
    assert child.token == 1


def test_it_goes_on_alone(parent):
    child = fork(parent, 1)
    before = [(g.id, g.status) for g in groups.groups(parent.store, "small")]
    policies.publish(child, 0, 1, "weights 1")
    worker = start_worker(child)
    claims = generate(child, worker, 2)
    assert [claim.prompt_index for claim in claims] == [4, 5]
    train(child, 2)
    assert verify(parent.store, "fork").problems == []
    assert [(g.id, g.status) for g in groups.groups(parent.store, "small")] == before
    grandchild = fork(child, 2, "grandchild")
    assert [row.sample_id for row in steps.rows(parent.store, "grandchild", 1)] == [1, 2, 3, 4, 5, 6]
    assert runs.trained_prompt_index(parent.store, "grandchild") == 6
    assert verify(parent.store, "grandchild").problems == []
    assert samples.load(parent.store, [1])[0].num_tokens == 5
    assert grandchild.token == 1


def test_prompts_between_that_were_not_consumed_are_free_claims(attempt, worker):
    first, second, third = groups.claim(attempt, worker, 3)
    groups.commit(attempt, group(third, two_samples()))
    train(attempt, 1)
    groups.commit(attempt, group(first))
    groups.skip(attempt, second.group_id, "failed")  # after the step: the fork tries it again
    child = fork(attempt, 1)
    found = [(g.prompt_index, g.status) for g in groups.groups(attempt.store, "fork")]
    assert found == [(0, "claimed"), (1, "claimed"), (2, "trained")]
    claims = groups.claim(child, start_worker(child), 3)
    assert [claim.prompt_index for claim in claims] == [0, 1, 3]
    assert verify(attempt.store, "fork").problems == []


def test_step_0_shares_nothing(parent):
    fork(parent, 0)
    assert groups.groups(parent.store, "fork") == []
    assert checkpoints.cursor(parent.store, "fork") is None
    assert verify(parent.store, "fork").problems == []


def test_it_refuses_other_data_than_the_parent_had_unless_it_names_other_data(parent):
    runs.check_data(parent, "6 rows, abc")
    assert runs.get_run(parent.store, fork(parent, 1).run_id).data_fingerprint == "6 rows, abc"
    config, checkpoint = {"data": {"path": "others.jsonl"}}, ("runs/other/checkpoint", "digest")
    forks.fork(parent.store, parent.run_id, 1, "other", config, "hash", "runs/other", checkpoint)
    assert runs.get_run(parent.store, "other").data_fingerprint is None


def test_what_cannot_be_forked(parent):
    with pytest.raises(BadInput, match="has not finished step 3"):
        fork(parent, 3)
    with pytest.raises(BadInput, match="without a checkpoint"):
        forks.fork(parent.store, "small", 1, "fork", {}, "hash", "d", None)
    with pytest.raises(StatusConflict, match="exists already"):
        fork(parent, 1, "small")
    assert runs.find_run(parent.store, "fork") is None
