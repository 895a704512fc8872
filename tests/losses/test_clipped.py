"""The clipped objective on ratios one can check by eye."""

import pytest
import torch

from agrpo.losses import Band, LossTerms
from agrpo.losses.clipped import clipped_loss

BAND = Band(clip_min=0.5, clip_max=5.0, epsilon=0.2, epsilon_high=0.3)


def loss_of(ratios, advantages, sampler=None):
    count = len(ratios)
    sampler = torch.full((count,), -2.0, dtype=torch.float64) if sampler is None else sampler
    log_probs = (torch.tensor(ratios, dtype=torch.float64).log() - 2.0).requires_grad_()
    empty = torch.empty(count, 0, dtype=torch.float64)
    result = clipped_loss(
        LossTerms(log_probs, empty, sampler, empty, torch.tensor(advantages, dtype=torch.float64)), BAND
    )
    (grad,) = torch.autograd.grad(result.total, [log_probs])
    return result, grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside: plain policy gradient r A
        (1.5, 2.0, -2.6, 0.0),  # too high with a positive advantage: held at 1.3
        (1.5, -2.0, 3.0, 3.0),  # too high with a negative advantage: still pushed down
        (0.7, -2.0, 1.6, 0.0),  # too low with a negative advantage: held at 0.8
        (0.7, 2.0, -1.4, -1.4),
        (0.4, 2.0, 0.0, 0.0),  # outside the importance sampling band: out of the loss
        (6.0, -2.0, 0.0, 0.0),
    ],
)
def test_each_case_of_the_objective(ratio, advantage, loss, slope):
    result, grad = loss_of([ratio], [advantage])
    assert result.total.item() == pytest.approx(loss, abs=1e-10)
    assert grad.item() == pytest.approx(slope, abs=1e-10)


def test_marks_count_what_the_clip_held():
    result, _ = loss_of([1.5, 1.5, 0.7, 6.0], [1.0, -1.0, -1.0, 1.0])
    assert result.marks["high"].tolist() == [1, 0, 0, 1]
    assert result.marks["low"].tolist() == [0, 0, 1, 0]
    assert result.marks["masked"].tolist() == [0, 0, 0, 1]


def test_an_unknown_log_probability_gives_neither_loss_nor_nan():
    result, grad = loss_of([1.0, 1.0], [1.0, 1.0], sampler=torch.tensor([torch.nan, -2.0], dtype=torch.float64))
    assert result.total.item() == pytest.approx(-1.0)
    assert grad.tolist() == pytest.approx([0.0, -1.0])


def test_a_token_outside_the_trained_support_gives_no_nan():
    log_probs = torch.tensor([-torch.inf, -2.0], requires_grad=True)
    empty = torch.empty(2, 0)
    result = clipped_loss(LossTerms(log_probs, empty, torch.tensor([-2.0, -2.0]), empty, torch.ones(2)), BAND)
    (grad,) = torch.autograd.grad(result.total, [log_probs])
    assert grad.tolist() == pytest.approx([0.0, -1.0])
