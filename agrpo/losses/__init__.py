"""Losses: each takes tensors and returns a sum and detached marks; the trainer divides once per step."""

from collections.abc import Callable

from agrpo.losses.centering import centered_loss
from agrpo.losses.clipped import clipped_loss
from agrpo.losses.terms import Band, LossSum, LossTerms

Loss = Callable[[LossTerms, Band], LossSum]

LOSSES: dict[str, Loss] = {
    "centered": centered_loss,
    "clipped": clipped_loss,
}

__all__ = ["LOSSES", "Band", "Loss", "LossSum", "LossTerms"]
