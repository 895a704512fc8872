"""Payloads that nobody needs any more, and the ledger that stays."""

import pytest
from sqlalchemy import text

from agrpo.store import forks, groups, pruning, samples, steps
from agrpo.store.verify import verify
from tests.worlds.small_groups import generate, group, name_checkpoint


@pytest.fixture
def trained(attempt, worker):
    """Steps 1 to 4 of one group each, the cursor at 3, one group without signal and one pending."""
    generate(attempt, worker, 4)
    for step, sample in enumerate(samples.pending(attempt.store, attempt.run_id)[::2], 1):
        rows = [steps.StepRow(0, 0, i, sample.sample_id + i) for i in range(2)]
        steps.record(attempt, step, rows, 0)
        steps.finish(attempt, step, f"weights {step}", {})
    name_checkpoint(attempt, 3, "checkpoint-3", "digest")
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, reason="no_signal"))
    generate(attempt, worker, 1)
    return attempt


def pruned_steps(attempt):
    return [step for step in range(1, 5) if steps.pruned(attempt.store, attempt.run_id, step - 1, step)]


@pytest.mark.parametrize(("keep", "number", "gone"), [("all", 0, []), ("none", 4, [1, 2, 3]), (2, 2, [1]), (9, 1, [])])
def test_what_is_kept(trained, keep, number, gone):
    assert pruning.prune(trained, keep) == number
    assert pruned_steps(trained) == gone
    assert pruning.prune(trained, keep) == 0
    found = verify(trained.store, trained.run_id)
    assert found.problems == []
    assert found.num_turns == 2 * (6 - number)
    assert samples.load(trained.store, [7])[0].num_tokens == 5  # step 4 is replayed after a restart


def test_what_a_fork_shares_stays(trained):
    checkpoint = ("checkpoint-2", "digest")
    forks.fork(trained.store, trained.run_id, 2, "fork", {}, "hash", "d", checkpoint)
    pruning.prune(trained, "none")
    assert pruned_steps(trained) == [3]
    assert verify(trained.store, "fork").problems == []


def test_it_goes_on_after_the_groups_of_one_transaction(trained, monkeypatch):
    monkeypatch.setattr(pruning, "_AT_A_TIME", 1)
    assert pruning.prune(trained, "none") == 4
    assert pruned_steps(trained) == [1, 2, 3]


@pytest.mark.parametrize("backend", ["sqlite"])
def test_no_table_is_read_whole_for_every_group(trained, backend):
    query = pruning.due_groups(trained.run_id, 0, 0)
    with trained.store.read() as connection:
        sql = query.compile(connection, compile_kwargs={"literal_binds": True})
        plan = [row.detail for row in connection.execute(text(f"EXPLAIN QUERY PLAN {sql}"))]
    assert [step for step in plan if step.startswith("SCAN")] == []
