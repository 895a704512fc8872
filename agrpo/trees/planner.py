"""Samples into the rows of a step: pure, deterministic, first come first served.

A sample joins the row that holds its group. When that row is full it joins another one if some row is still empty, or
if the busiest row stays the busiest; otherwise the micro-batch closes and the sample opens the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from agrpo.trees.trie import Fork, PrefixTrie, sort_key


@dataclass(frozen=True, slots=True)
class Sample:
    """What the planner knows of a sample."""

    sample_id: int
    group_id: int
    key: bytes
    """Its tokens, as `sort_key` gives them."""
    num_trained: int
    """Loss terms."""

    @classmethod
    def of(cls, sample_id: int, group_id: int, token_ids: np.ndarray, num_trained: int) -> "Sample":
        """From its tokens, int [tokens]."""
        return cls(sample_id, group_id, sort_key(token_ids), num_trained)

    @property
    def num_tokens(self) -> int:
        """Tokens before packing."""
        return len(self.key) // 4 - 1


MicroBatch = tuple[tuple[Sample, ...], ...]
"""The samples of each row, one row a rank."""


class Sized(Protocol):
    """A sample whose tokens need not be known."""

    @property
    def num_tokens(self) -> int:
        """Tokens before packing."""
        ...

    @property
    def num_trained(self) -> int:
        """Loss terms."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The form of a step."""

    num_ranks: int
    num_micro_batches: int
    """Micro-batches of a step; with groups_per_step only a lower bound of what is allowed."""
    token_budget: int
    """Most unique tokens, and most loss terms, in a row."""
    groups_per_step: int | None = None
    """Groups that make a step; None: rows are filled."""

    def allow(self, sample: Sized) -> bool:
        """Whether an empty row can hold the sample."""
        return max(sample.num_tokens, sample.num_trained) <= self.token_budget


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows of a step; every micro-batch has one row per rank, which may be empty."""

    micro_batches: tuple[MicroBatch, ...]
    complete: bool
    """No further sample belongs into this step."""

    @property
    def samples(self) -> list[Sample]:
        """All samples in the order micro-batch, rank, position."""
        return [sample for micro_batch in self.micro_batches for row in micro_batch for sample in row]


def plan_step(samples: Iterable[Sample], limits: Limits) -> StepPlan:
    """Fill a step from samples in the order in which they became ready; `limits` must allow each of them.

    Without groups_per_step a sample that the last micro-batch refuses completes the step; with it the first sample
    of one group too many does, and a refused sample opens one more micro-batch.
    """
    micro_batches = [_OpenMicroBatch(limits)]
    groups: set[int] = set()
    complete = False
    for sample in samples:
        groups.add(sample.group_id)
        if limits.groups_per_step is not None and len(groups) > limits.groups_per_step:
            complete = True
            break
        if micro_batches[-1].place(sample):
            continue
        if limits.groups_per_step is None and len(micro_batches) == limits.num_micro_batches:
            complete = True
            break
        micro_batches.append(_OpenMicroBatch(limits))
        if not micro_batches[-1].place(sample):
            raise ValueError(
                f"sample {sample.sample_id} has {sample.num_tokens} tokens; drop what Limits.allow refuses"
            )
    complete = complete or len(groups) == limits.groups_per_step
    return StepPlan(tuple(batch.close() for batch in micro_batches if batch.num_samples), complete)


@dataclass(slots=True)
class _OpenRow:
    """A row that still takes samples."""

    trie: PrefixTrie = field(default_factory=PrefixTrie)
    samples: list[Sample] = field(default_factory=list)
    num_terms: int = 0

    def add(self, sample: Sample, fork: Fork | None = None) -> None:
        """Take a sample; `fork` is where it leaves the row's tree, when that is known already."""
        self.trie.add(sample.key, fork)
        self.samples.append(sample)
        self.num_terms += sample.num_trained

    def fit(self, sample: Sample, token_budget: int) -> Fork | None:
        """Where the sample would fork; None when the row is too full for it."""
        if self.num_terms + sample.num_trained > token_budget:
            return None
        fork = self.trie.find(sample.key)
        return fork if self.trie.num_tokens + fork.num_own <= token_budget else None

    @property
    def load(self) -> int:
        """Attention cost: pairs of query and key."""
        return self.trie.num_pairs


class _OpenMicroBatch:
    """One open row per rank; a group keeps to the row that has its first sample, its home, for the shared prefix."""

    def __init__(self, limits: Limits) -> None:
        self._rows = [_OpenRow() for _ in range(limits.num_ranks)]
        self._budget = limits.token_budget
        self._homes: dict[int, _OpenRow] = {}

    @property
    def num_samples(self) -> int:
        """Samples in all its rows."""
        return sum(len(row.samples) for row in self._rows)

    def place(self, sample: Sample) -> bool:
        """Put the sample into a row, or refuse it: then the micro-batch is closed."""
        home = self._homes.get(sample.group_id)
        if home and (fork := home.fit(sample, self._budget)):
            home.add(sample, fork)
            return True
        busiest = max(row.load for row in self._rows)
        for row in sorted(self._rows, key=lambda row: row.load):
            if row is home or not (fork := row.fit(sample, self._budget)):
                continue
            if home and row.samples and row.load + fork.num_pairs > busiest:
                break
            row.add(sample, fork)
            self._homes[sample.group_id] = row
            return True
        return False

    def close(self) -> MicroBatch:
        """The rows; those left empty by an early end take half of the busiest, as long as there are samples."""
        while idle := [row for row in self._rows if not row.samples]:
            busiest = max(self._rows, key=lambda row: row.load if len(row.samples) > 1 else -1)
            if len(busiest.samples) < 2:
                break
            _halve(busiest, idle[0])
        return tuple(tuple(row.samples) for row in self._rows)


def _halve(full: _OpenRow, empty: _OpenRow) -> None:
    """Move the last samples of a row, about half of its attended pairs, into an empty one."""
    samples, goal = full.samples, full.load / 2
    full.trie, full.samples, full.num_terms = PrefixTrie(), [], 0
    for sample in samples[:-1]:
        stays = not full.samples or (not empty.samples and full.load < goal)
        (full if stays else empty).add(sample)
    empty.add(samples[-1])
