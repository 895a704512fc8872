import pytest

from agrpo.errors import StatusConflict
from agrpo.store import events, groups, samples, steps
from tests.worlds.small_groups import generate


@pytest.fixture
def sample_ids(store, attempt, worker):
    """Samples 0, 1 of group 0 and 2, 3 of group 1."""
    generate(attempt, worker, 2)
    return [sample.sample_id for sample in samples.pending(store, "small")]


def test_a_recorded_step_is_read_back_in_order(store, attempt, sample_ids):
    a, b, c, _ = sample_ids
    rows = [steps.StepRow(1, 0, 0, c), steps.StepRow(0, 1, 0, b), steps.StepRow(0, 0, 0, a)]
    steps.record(attempt, 1, rows, policy_version=3)
    assert steps.rows(store, "small", 1) == [rows[2], rows[1], rows[0]]
    assert steps.rows(store, "small", 2) == []
    assert [row.status for row in groups.groups(store, "small")] == ["trained", "ready"]


def test_a_sample_is_trained_in_one_step_only(store, attempt, sample_ids):
    a, b, *_ = sample_ids
    steps.record(attempt, 1, [steps.StepRow(0, 0, 0, a)], 0)
    for rows in ([steps.StepRow(0, 0, 0, a)], [steps.StepRow(0, 0, 0, b), steps.StepRow(0, 0, 1, b)]):
        with pytest.raises(StatusConflict, match="train samples in step 2"):
            steps.record(attempt, 2, rows, 0)
    assert steps.last_recorded(store, "small") == 1
    assert steps.rows(store, "small", 2) == []


@pytest.mark.parametrize("step", [0, 2])
def test_steps_are_recorded_one_after_the_other(store, attempt, sample_ids, step):
    with pytest.raises(StatusConflict, match=f"step {step} cannot be recorded: the last recorded one is 0"):
        steps.record(attempt, step, [steps.StepRow(0, 0, 0, sample_ids[0])], 0)


def test_finishing_says_whether_a_replay_made_the_same_weights(store, attempt, sample_ids):
    steps.record(attempt, 1, [steps.StepRow(0, 0, 0, sample_ids[0])], 0)
    assert steps.last_finished(store, "small") == 0
    assert steps.finish(attempt, 1, "aa", {"loss": 0.5}) == "new"
    assert steps.last_finished(store, "small") == 1
    assert steps.finish(attempt, 1, "aa", {}) == "equal"
    assert events.events(store, "small") == []
    assert steps.finish(attempt, 1, "bb", {}) == "different"
    (event,) = events.events(store, "small")
    assert (event.kind, event.detail) == ("replay_differs", {"step": 1, "was": "aa", "now": "bb"})
    assert steps.finish(attempt, 1, "bb", {}) == "equal"


def test_a_step_that_was_not_recorded_cannot_be_finished(attempt):
    with pytest.raises(StatusConflict, match="never recorded"):
        steps.finish(attempt, 1, "aa", {})
