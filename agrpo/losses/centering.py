"""Score centring with masked importance sampling.

With f(r) = r inside the band and 0 outside, q the sampler and p the trained policy, the score of the sampled token is
centred by its expectation under the sampler. Only the sampler's top tokens H are known; outside H the sampler is taken
to be alpha p, the trained policy rescaled to the remaining mass, and because the probabilities' gradients sum to zero
the expectation needs log-probabilities in H alone.
"""

import torch
from torch import Tensor

from agrpo.losses.ratios import inside, known, ratio_marks, ratios
from agrpo.losses.terms import Band, LossSum, LossTerms

SMALLEST_TAIL = 1e-6
"""Floor of the mass that either policy leaves outside H."""


def centered_loss(terms: LossTerms, band: Band) -> LossSum:
    """Sum over terms of -A [ f(r) log p(o) - sum over H of c log p(v) ], with f(r) and c held constant."""
    is_known = known(terms)
    ratio = ratios(terms).detach()
    weight = torch.where(is_known & inside(ratio, band), ratio, 0.0)
    coefficients, sampler_mass = head_coefficients(terms, band)
    in_head = torch.isfinite(terms.sampler_top_log_probs)
    centre = (coefficients * torch.where(in_head, terms.top_log_probs, 0.0)).sum(-1)
    score = weight * torch.where(is_known, terms.log_probs, 0.0) - torch.where(is_known, centre, 0.0)
    marks = ratio_marks(terms, ratio, band) | {
        "low": torch.where(is_known, (ratio < 1 - band.epsilon).to(ratio.dtype), torch.nan),
        "high": torch.where(is_known, (ratio > 1 + band.epsilon_high).to(ratio.dtype), torch.nan),
        "sampler_mass": sampler_mass,
    }
    return LossSum(total=-(terms.advantages * score).sum(), marks=marks)


def head_coefficients(terms: LossTerms, band: Band) -> tuple[Tensor, Tensor]:
    """c = q f(p/q) - alpha f(1/alpha) p on H, detached [terms, K], and the sampler's mass on H [terms]."""
    in_head = torch.isfinite(terms.sampler_top_log_probs)
    sampler = torch.where(in_head, terms.sampler_top_log_probs.exp(), 0.0)
    policy = torch.where(in_head, terms.top_log_probs.detach().exp(), 0.0)
    sampler_mass = sampler.sum(-1)
    sampler_tail = (1 - sampler_mass).clamp(min=SMALLEST_TAIL)
    policy_tail = (1 - policy.sum(-1)).clamp(min=SMALLEST_TAIL)
    head_ratio = policy / torch.where(in_head, sampler, 1.0)
    tail_ratio = policy_tail / sampler_tail
    # q f(p/q) is p inside the band, and alpha f(1/alpha) is 1: written so, equal parts cancel to exactly 0.
    head_trusted = inside(head_ratio, band) & in_head
    tail_trusted = inside(tail_ratio, band).unsqueeze(-1)
    return policy * (head_trusted.to(policy.dtype) - tail_trusted.to(policy.dtype)), sampler_mass
