"""The clipped objective with masked importance sampling."""

import torch

from agrpo.losses.ratios import inside, known, ratio_marks, ratios
from agrpo.losses.terms import Band, LossSum, LossTerms


def clipped_loss(terms: LossTerms, band: Band) -> LossSum:
    """Minus the sum over terms inside the band of min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)."""
    is_known = known(terms)
    ratio = ratios(terms)
    advantages = terms.advantages
    low, high = 1 - band.epsilon, 1 + band.epsilon_high
    objective = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    kept = torch.where(is_known & inside(ratio.detach(), band), objective, 0.0)
    too_low = (ratio.detach() < low) & (advantages < 0)
    too_high = (ratio.detach() > high) & (advantages > 0)
    marks = ratio_marks(terms, ratio, band) | {
        "low": torch.where(is_known, too_low.to(ratio.dtype), torch.nan),
        "high": torch.where(is_known, too_high.to(ratio.dtype), torch.nan),
    }
    return LossSum(total=-kept.sum(), marks=marks)
