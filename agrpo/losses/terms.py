"""What a loss sees: one entry per loss term (a trained token), as tensors; and what it gives back."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Both policies' view of every trained token of a row, K = the sampler's most likely tokens."""

    log_probs: Tensor
    """Trained policy's log-probability of the sampled token, differentiable [terms]."""
    top_log_probs: Tensor
    """Trained policy's log-probability of the sampler's top tokens, differentiable [terms, K]."""
    sampler_log_probs: Tensor
    """Sampler's log-probability of the sampled token, NaN where the server gave none [terms]."""
    sampler_top_log_probs: Tensor
    """Sampler's log-probability of its top tokens, -inf where there is none [terms, K]."""
    advantages: Tensor
    """[terms]"""


@dataclass(frozen=True, slots=True)
class Band:
    """Where a ratio trained policy / sampler is trusted."""

    clip_min: float
    clip_max: float
    epsilon: float
    epsilon_high: float


@dataclass(frozen=True, slots=True)
class LossSum:
    """A sum over loss terms, to be divided once by the step's trained tokens, and detached marks per term."""

    total: Tensor
    """Scalar, differentiable."""
    marks: dict[str, Tensor]
    """Name -> [terms]; NaN where a term has no such value."""
