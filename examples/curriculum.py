"""A curriculum: a question that is solved nearly every time is not asked again."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from agrpo import AsyncGRPOConfig, AsyncGRPOTrainer, AsyncRolloutLoop, RolloutGroup


@dataclass
class CurriculumConfig(AsyncGRPOConfig):
    """The usual settings and the share of right answers from which a question counts as solved."""

    solved_at: float = 0.9


class CurriculumLoop(AsyncRolloutLoop):
    """Remembers how often each question was answered rightly, and leaves out those that are solved."""

    config: CurriculumConfig

    async def setup(self) -> None:
        """Nothing is solved yet."""
        self.solved_share: dict[int, float] = {}

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        """Ask what is not solved."""
        return self.solved_share.get(row_index, 0.0) < self.config.solved_at

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        """The usual advantages, and a note of how many answers were right."""
        assert group.rewards is not None
        scored = group.rewards[~np.isnan(group.rewards)]
        if len(scored):
            self.solved_share[group.row_index] = float((scored > 0).mean())
        return super().compute_advantages(group)


class CurriculumTrainer(AsyncGRPOTrainer):
    """A trainer whose worker runs the curriculum."""

    loop_cls = CurriculumLoop
