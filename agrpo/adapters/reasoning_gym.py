"""Tasks of the package reasoning-gym: rows to train on, and the dataset's own score as reward.

# tasks.py, for a run file with data.rows: "tasks.py:rows" and rewards: ["tasks.py:score"]
arithmetic = ReasoningGym("basic_arithmetic", size=500, seed=1)
rows, score = arithmetic.rows, arithmetic.score
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agrpo.records import Message
from agrpo.rewards.accuracy import answer_text

INSTRUCTION = "Think if you need to, then write your answer between <answer> and </answer>."
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass
class ReasoningGym:
    """One dataset; the same name, size, seed and options always give the same tasks."""

    name: str
    size: int = 500
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Further keywords of `reasoning_gym.create_dataset`."""
    instruction: str = INSTRUCTION
    """System message."""

    def rows(self) -> list[dict[str, Any]]:
        """Prompts with their place in the dataset."""
        system = {"role": "system", "content": self.instruction}
        questions = [self._dataset[i]["question"] for i in range(self.size)]
        return [{"prompt": [system, {"role": "user", "content": q}], "task": i} for i, q in enumerate(questions)]

    def score(self, completions: list[list[Message]], task: list[int], **columns: Any) -> list[float]:
        """The dataset's own score of each answer, 0 to 1."""
        return [
            float(self._dataset.score_answer(answer_in(completion), self._dataset[index]))
            for completion, index in zip(completions, task, strict=True)
        ]

    @cached_property
    def _dataset(self) -> Any:
        import reasoning_gym

        return reasoning_gym.create_dataset(self.name, size=self.size, seed=self.seed, **self.options)

    def __getstate__(self) -> dict[str, Any]:
        """The dataset is made again in the worker instead of travelling there."""
        return {name: value for name, value in vars(self).items() if name != "_dataset"}


def answer_in(completion: list[Message]) -> str | None:
    """What stands between the last pair of answer tags; None without one."""
    found = _ANSWER.findall(answer_text(completion))
    return found[-1].strip() if found else None
