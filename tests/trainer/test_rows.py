"""Rows one can check by eye."""

import numpy as np
import torch

from agrpo.records import TrainingSequence
from agrpo.trainer.rows import build_row


def sample(tokens, trained, top=None, candidates=None, advantage=1.0):
    """trained: {index: log-prob}; top: one {id: log-prob} a trained token."""
    log_probs = np.full(len(tokens), np.nan, np.float32)
    for index, log_prob in trained.items():
        log_probs[index] = log_prob
    return TrainingSequence(
        token_ids=np.array(tokens, np.int32),
        trained=np.isin(np.arange(len(tokens)), list(trained)),
        log_probs=log_probs,
        top_ids=None if top is None else [np.array(list(entry), np.int32) for entry in top],
        top_log_probs=None if top is None else [np.array(list(entry.values()), np.float32) for entry in top],
        candidates=None if candidates is None else [np.array(allowed, np.int32) for allowed in candidates],
        advantage=advantage,
    )


def test_samples_that_share_nothing_lie_one_after_another():
    row = build_row([sample([5, 6, 7, 8], {2: -1.0, 3: -2.0}), sample([5, 9, 4], {1: -3.0}, advantage=-2.0)])
    assert row.input_ids.tolist() == [[5, 6, 7, 8, 5, 9, 4]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    assert row.positions.tolist() == [1, 2, 4]
    assert row.targets.tolist() == [7, 8, 9]
    assert row.samples.tolist() == [0, 0, 1]
    assert row.advantages.tolist() == [1, 1, -2]
    assert row.sampler_log_probs.tolist() == [-1, -2, -3]
    assert row.top_ids.shape == (3, 0)
    assert row.candidates is None
    assert (row.num_tokens, row.num_terms, row.num_samples) == (7, 3, 2)


def test_a_shared_token_is_there_once_and_its_terms_stay_apart():
    first, second = sample([5, 6, 7, 8], {2: -1.0, 3: -2.0}), sample([5, 6, 7, 9], {2: -3.0, 3: -4.0}, advantage=-2.0)
    row = build_row([first, second])
    assert row.input_ids.tolist() == [[5, 6, 7, 8, 7, 9]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 2, 3]]
    assert row.positions.tolist() == [1, 2, 1, 4]
    assert row.targets.tolist() == [7, 8, 7, 9]
    assert row.samples.tolist() == [0, 0, 1, 1]
    assert row.advantages.tolist() == [1, 1, -2, -2]
    assert row.sampler_log_probs.tolist() == [-1, -2, -3, -4]
    assert (row.num_tokens, row.num_terms, row.num_samples) == (6, 4, 2)


def test_top_tokens_are_padded_and_only_real_ones_inside_the_candidates_stay():
    given = sample(
        [1, 2, 3],
        {1: -1.0, 2: -1.0},
        top=[{2: -1.0, 7: -np.inf, 8: -2.0}, {3: -1.0}],
        candidates=[[2, 7], [3, 4, 5]],
    )
    row = build_row([given, sample([1, 2], {1: -1.0})])
    assert row.top_ids.tolist() == [[2], [3], [-1]]
    assert row.sampler_top_log_probs.tolist() == [[-1], [-1], [-np.inf]]
    assert row.candidates.tolist() == [[2, 7, -1], [3, 4, 5], [-1, -1, -1]]


def test_no_samples_make_one_dummy_token_without_terms():
    row = build_row([])
    assert row.input_ids.tolist() == [[0]]
    assert row.layout.num_tokens == 1
    assert (row.num_tokens, row.num_terms, row.num_samples) == (0, 0, 0)
    assert row.candidates is None and row.top_ids.shape == (0, 0)


def test_a_row_moves_to_a_device_whole():
    row = build_row([sample([1, 2], {1: -1.0})]).to(torch.device("meta"))
    assert row.input_ids.is_meta and row.advantages.is_meta
    assert row.layout.num_tokens == 2
