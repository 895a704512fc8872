"""The generators that dropout draws from, so that a step that was broken off is made again with the same masks."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RandomState:
    """Python's, numpy's and torch's generators at one moment, on CPU and on every GPU of this process."""

    python: Any
    numpy: Any
    cpu: Tensor
    gpus: list[Tensor]

    @staticmethod
    def now() -> "RandomState":
        """As they are."""
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return RandomState(random.getstate(), np.random.get_state(), torch.get_rng_state(), gpus)

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.gpus:
            torch.cuda.set_rng_state_all(self.gpus)
