"""Hooks into transformers' loop where no method can be overridden: its beginning, and around the optimizer."""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from agrpo.trainer.measures import Measures


class StepClock(TrainerCallback):
    """Calls `begin` when everything is loaded and before the first step; measures the optimizer."""

    def __init__(self, measures: Measures, begin: Callable[[], None]) -> None:
        self._measures = measures
        self._begin = begin
        self._optimizer_began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model, its optimizer and a checkpoint are loaded."""
        self._begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gradients are clipped."""
        self._optimizer_began = time.monotonic()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Weights are new."""
        self._measures.add_seconds("optimizer_s", time.monotonic() - self._optimizer_began)
