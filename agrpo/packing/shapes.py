"""What a row would cost with one more sample. Prefix trees will be a second shape beside whole samples."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sample:
    """What the planner knows of a sample."""

    sample_id: int
    group_id: int
    num_tokens: int
    num_trained: int


class RowShape(Protocol):
    """The size of one row while it is being filled."""

    @property
    def num_tokens(self) -> int:
        """Tokens the row forwards."""
        ...

    @property
    def num_pairs(self) -> int:
        """Attended pairs (query, key): the cost that rows are balanced by."""
        ...

    def with_sample(self, sample: Sample) -> "RowShape":
        """The shape after adding a sample; the receiver stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class WholeSamples:
    """Samples one after another, sharing nothing."""

    num_tokens: int = 0
    num_pairs: int = 0

    def with_sample(self, sample: Sample) -> "WholeSamples":
        """Add the sample's tokens, and the causal pairs among them."""
        pairs = sample.num_tokens * (sample.num_tokens + 1) // 2
        return WholeSamples(self.num_tokens + sample.num_tokens, self.num_pairs + pairs)
