"""The ratio of the trained policy to the sampler, and who is left out of the loss."""

import torch
from torch import Tensor

from agrpo.losses.terms import Band, LossTerms

LARGEST_LOG_RATIO = 30.0
"""Beyond any sensible band; keeps exp, and the gradient of a masked term, finite."""


def known(terms: LossTerms) -> Tensor:
    """Where both log-probabilities are numbers: other terms leave the loss, bool [terms]."""
    return torch.isfinite(terms.sampler_log_probs) & torch.isfinite(terms.log_probs)


def ratios(terms: LossTerms) -> Tensor:
    """p / q of each sampled token, differentiable; constant 1 where either is unknown [terms]."""
    difference = torch.where(known(terms), terms.log_probs, 0.0) - torch.where(
        known(terms), terms.sampler_log_probs, 0.0
    )
    return torch.exp(difference.clamp(max=LARGEST_LOG_RATIO))


def inside(ratio: Tensor, band: Band) -> Tensor:
    """Where a ratio lies in the importance sampling band, bool, same shape."""
    return (ratio >= band.clip_min) & (ratio <= band.clip_max)


def ratio_marks(terms: LossTerms, ratio: Tensor, band: Band) -> dict[str, Tensor]:
    """Measurements of every term before masking, NaN where the sampler's log-probability is unknown; each [terms]."""
    detached, is_known = ratio.detach(), known(terms)
    marks = {
        "ratio": detached,
        "logp_difference": (terms.log_probs.detach() - terms.sampler_log_probs).abs(),
        "masked": (~inside(detached, band)).to(detached.dtype),
    }
    return {name: torch.where(is_known, mark, torch.nan) for name, mark in marks.items()}
