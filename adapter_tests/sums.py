"""A taskset of verifiers: sums, and a reward of its own."""

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    """The question is the prompt."""

    answer: str


class SumTask(vf.Task[SumData]):
    """Right when the answer is in what was said."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        """1 or 0."""
        return float(self.data.answer in str(trace.last_reply))


class Sums(vf.Taskset[SumTask]):
    """0+1 to 4+1."""

    num_loads = 0

    def load(self) -> Iterator[SumTask]:
        """Five tasks."""
        type(self).num_loads += 1
        for number in range(5):
            yield SumTask(SumData(prompt=f"What is {number}+1?", answer=str(number + 1)), self.config.task)


__all__ = ["Sums"]
