import pytest

from agrpo.errors import StatusConflict
from agrpo.store import checkpoints, groups, runs, samples, steps
from tests.worlds.small_groups import generate, name_checkpoint, start_run, start_worker


def train(attempt, step, chosen):
    rows = [steps.StepRow(0, 0, position, sample.sample_id) for position, sample in enumerate(chosen)]
    steps.record(attempt, step, rows, 0)
    steps.finish(attempt, step, f"digest-{step}", {})


def test_the_cursor_is_the_last_committed_checkpoint(store, attempt):
    assert checkpoints.cursor(store, "small") is None
    name_checkpoint(attempt, 1, "runs/small/checkpoint-1", "aa")
    name_checkpoint(attempt, 2, "runs/small/checkpoint-2", "bb")
    cursor = checkpoints.cursor(store, "small")
    assert (cursor.step, cursor.path, cursor.digest) == (2, "runs/small/checkpoint-2", "bb")
    assert [row.step for row in checkpoints.all(store, "small")] == [1, 2]
    assert runs.get_run(store, "small").checkpoint_path == cursor.path
    assert checkpoints.cursor(store, "nobody") is None


def test_an_older_checkpoint_can_become_the_cursor_again(store, attempt):
    """When the newest folder is damaged the run goes on from the one before and writes the step anew."""
    for step in (1, 2, 1):
        name_checkpoint(attempt, step, f"checkpoint-{step}", "aa")
    assert checkpoints.cursor(store, "small").step == 1
    assert len(checkpoints.all(store, "small")) == 2


def test_falling_back_takes_back_the_names_of_later_ones(store, attempt):
    for step in (1, 2, 3):
        name_checkpoint(attempt, step, f"checkpoint-{step}", "aa")
    checkpoints.fall_back(attempt, 2)
    assert [row.step for row in checkpoints.all(store, "small")] == [1, 2]
    assert checkpoints.cursor(store, "small").step == 2
    checkpoints.fall_back(attempt, 0)
    assert checkpoints.all(store, "small") == [] and checkpoints.cursor(store, "small") is None


def test_the_cursor_cannot_be_forgotten(store, attempt):
    for step in (1, 2):
        name_checkpoint(attempt, step, f"checkpoint-{step}", "aa")
    with pytest.raises(StatusConflict, match="checkpoint 2 is the one run 'small' resumes from"):
        checkpoints.forget(attempt, 2)
    checkpoints.forget(attempt, 1)
    assert [row.step for row in checkpoints.all(store, "small")] == [2]
    with pytest.raises(StatusConflict):
        checkpoints.forget(attempt, 1)


def test_one_dropped_group_does_not_pin_the_position(store, attempt, worker):
    """Fault 2: 150 groups in order, group 2 goes stale and is dropped, a checkpoint after group 149."""
    generate(attempt, worker, 150)
    pending = samples.pending(store, "small")
    stale = [sample for sample in pending if sample.prompt_index == 2]
    for step in range(1, 11):
        chosen = [one for one in pending if one.prompt_index // 15 == step - 1 and one.prompt_index != 2]
        if step == 5:
            samples.drop(attempt, [sample.sample_id for sample in stale], "stale")
        train(attempt, step, chosen)
        assert runs.trained_prompt_index(store, "small") == (2 if step < 5 else step * 15)
    assert name_checkpoint(attempt, 10, "checkpoint-10", "aa") == 150
    rows = {row.prompt_index: row.status for row in groups.groups(store, "small")}
    assert rows[2] == "dropped"
    assert {status for index, status in rows.items() if index != 2} == {"trained"}
    assert [claim.prompt_index for claim in groups.claim(attempt, worker, 1)] == [150]


def test_a_pending_a_claimed_and_a_never_claimed_prompt_hold_the_position(store, attempt, worker):
    assert runs.trained_prompt_index(store, "small") == 0
    claims = groups.claim(attempt, worker, 2)
    assert runs.trained_prompt_index(store, "small") == 0
    groups.skip(attempt, claims[0].group_id, "filtered")
    assert runs.trained_prompt_index(store, "small") == 1
    groups.skip(attempt, claims[1].group_id, "filtered")
    assert runs.trained_prompt_index(store, "small") == 2


def test_a_checkpoint_does_not_count_samples_of_later_steps(store, attempt, worker):
    """In a replay the steps after the cursor are recorded already; their samples are not in these weights."""
    generate(attempt, worker, 3)
    pending = samples.pending(store, "small")
    for step in (1, 2, 3):
        train(attempt, step, [sample for sample in pending if sample.prompt_index == step - 1])
    assert name_checkpoint(attempt, 1, "checkpoint-1", "aa") == 1
    assert runs.trained_prompt_index(store, "small", 2) == 2
    assert runs.trained_prompt_index(store, "small") == 3


def test_runs_have_cursors_of_their_own(store, attempt, worker):
    other = start_run(store, "other")
    generate(other, start_worker(other), 1)
    name_checkpoint(attempt, 1, "checkpoint-1", "aa")
    assert checkpoints.cursor(store, "other") is None
