import math

import numpy as np
import pytest

from agrpo.errors import StatusConflict, StoreError
from agrpo.records import TurnRecord
from agrpo.store import groups, runs, samples, steps
from tests.worlds.small_groups import PROMPT, generate, group, scored, turn, two_samples


def commit(attempt, worker, *rollouts):
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, *rollouts))


def record(attempt, step, *sample_ids):
    rows = [steps.StepRow(0, 0, position, sample_id) for position, sample_id in enumerate(sample_ids)]
    steps.record(attempt, step, rows, 0)


def ids(store):
    return [sample.sample_id for sample in samples.pending(store, "small")]


def test_pending_samples_in_the_order_their_groups_became_ready(store, attempt, worker):
    first, second = groups.claim(attempt, worker, 2)
    groups.commit(attempt, group(second, version=5))
    groups.commit(attempt, group(first, two_samples()))
    found = samples.pending(store, "small")
    assert [(sample.prompt_index, sample.ready_order, sample.position) for sample in found] == [
        (1, 1, 0),
        (1, 1, 1),
        (0, 2, 0),
        (0, 2, 1),
    ]
    assert [(sample.version, sample.num_tokens, sample.num_trained) for sample in found] == [
        (5, 5, 2),
        (5, 4, 1),
        (0, 5, 2),
        (0, 4, 1),
    ]
    assert found[2].rollout_id == found[3].rollout_id != found[1].rollout_id


def test_nothing_pending(store, attempt):
    assert samples.pending(store, "small") == []
    assert samples.load(store, []) == []


def test_loading_gives_back_what_was_committed_in_the_order_asked_for(store, attempt, worker):
    with_everything = TurnRecord(
        prompt_ids=[1, 2, 9],
        output_ids=[6, 7],
        output_log_probs=[-0.25, float("nan")],
        output_mask=[1, 1],
        output_sampling_mask=[[6, 7, 8], [7]],
        output_sampler_logprobs=[{6: -0.25, 8: -2.0}, {7: 0.0}],
        finish_reason="stop",
        weight_versions=[("0", 0, 2)],
    )
    rollout = scored([turn(PROMPT, [4, 5]), with_everything], advantage=1.5)
    commit(attempt, worker, rollout, scored([turn(PROMPT, [6])], advantage=-0.5))
    first, second, third = ids(store)
    loaded = samples.load(store, [third, second, first, second])
    assert [sequence.sample_id for sequence in loaded] == [third, second, first, second]
    assert [sequence.advantage for sequence in loaded] == [-0.5, 1.5, 1.5, 1.5]
    assert loaded[0].token_ids.tolist() == [1, 2, 3, 6]
    for got, made in zip((loaded[2], loaded[1]), rollout.sequences, strict=True):
        assert got.rollout_id == rollout.rollout.rollout_id
        for name in ("token_ids", "trained", "log_probs"):
            np.testing.assert_array_equal(getattr(got, name), getattr(made, name))
        for name in ("top_ids", "top_log_probs", "candidates"):
            for mine, theirs in zip(getattr(got, name) or [], getattr(made, name) or [], strict=True):
                np.testing.assert_array_equal(mine, theirs)
    assert loaded[1].candidates is not None
    assert loaded[1].trained.tolist() == [False, False, False, True, False]
    assert math.isnan(loaded[1].log_probs[4])


def test_loading_a_sample_that_is_not_there(store, attempt):
    with pytest.raises(StoreError, match=r"samples \[77\] are not in this store"):
        samples.load(store, [77])


def test_all_samples_of_a_rollout_are_dropped_together(store, attempt, worker):
    commit(attempt, worker, two_samples(), scored([turn(PROMPT, [6])]))
    samples.drop(attempt, ids(store)[1:2], "stale")
    assert len(ids(store)) == 1
    assert runs.summary(store, "small").samples == {"dropped": 2, "pending": 1}
    assert groups.groups(store, "small")[0].status == "ready"
    samples.drop(attempt, ids(store), "stale")
    assert groups.groups(store, "small")[0].status == "dropped"


def test_dropping_what_is_not_pending_is_a_conflict(store, attempt, worker):
    generate(attempt, worker, 1)
    first, second = ids(store)
    samples.drop(attempt, [first], "stale")
    with pytest.raises(StatusConflict, match="drop samples: 1 of 2 rows"):
        samples.drop(attempt, [first, second], "stale")
    assert ids(store) == [second]


def test_the_rest_of_a_rollout_in_training_cannot_be_dropped(store, attempt, worker):
    commit(attempt, worker, two_samples())
    first, second = ids(store)
    record(attempt, 1, first)
    (rest,) = samples.pending(store, "small")
    assert (rest.sample_id, rest.rollout_started) == (second, True)
    with pytest.raises(StatusConflict, match="part of it is trained already"):
        samples.drop(attempt, [second], "stale")
    record(attempt, 2, second)


def test_many_samples_fit_in_one_call(store, attempt, worker):
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, *[scored([turn(PROMPT, [4])])] * 1500))
    every = ids(store)
    assert len(samples.load(store, every)) == 1500
    record(attempt, 1, *every[:200])
    samples.drop(attempt, every[200:], "stale")
    assert runs.summary(store, "small").samples == {"trained": 200, "dropped": 1300}
