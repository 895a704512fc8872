"""What a trainer needs from whoever it trains for: a run that goes on, or one that is replayed."""

from pathlib import Path
from typing import Protocol

from agrpo.store import Store
from agrpo.trainer.checkpoint import Choice
from agrpo.trainer.feed import Ending, StepOrder


class Duties(Protocol):
    """Everything about training but the computing; every rank asks, rank 0 decides."""

    token_budget: int

    @property
    def store(self) -> Store:
        """Where samples lie."""

    def start(self) -> Choice:
        """The checkpoint to load."""

    def begin(self, step: int) -> None:
        """Everything is loaded as it was after `step`."""

    def next_order(self, step: int) -> StepOrder | Ending:
        """The samples of a step, or why there are none."""

    def alive(self, detail: str) -> None:
        """A row of a step begins: say that the trainer works, now and then."""

    def close(self, order: StepOrder) -> None:
        """The step is made."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Keep the measurements of a step."""

    def checkpoint_is_due(self) -> bool:
        """Whether it is time for one, whatever `save_steps` says."""

    def begin_checkpoint(self, step: int) -> Path:
        """An empty folder, known to every rank."""

    def finish_checkpoint(self, step: int, filled: Path, limit: int | None) -> None:
        """Every rank has written its part."""
