"""Samples into the rows of a step: pure, deterministic, first come first served (async-grpo.md section 6)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agrpo.packing.shapes import RowShape, Sample, WholeSamples

Row = tuple[Sample, ...]
MicroBatch = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The form of a step."""

    num_ranks: int
    num_micro_batches: int
    """Micro-batches of a step; with groups_per_step only a lower bound of what is allowed."""
    token_budget: int
    """Most tokens in a row."""
    groups_per_step: int | None = None
    """Groups that make a step; None: rows are filled."""


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


@dataclass
class _OpenRow:
    shape: RowShape
    samples: list[Sample] = field(default_factory=list)


def plan_step(samples: Iterable[Sample], limits: Limits, new_row: Callable[[], RowShape] = WholeSamples) -> StepPlan:
    """Fill a step from samples in the order in which they became ready; each must fit into an empty row.

    Without groups_per_step a sample that the last micro-batch refuses completes the step; with it the first sample
    of one group too many does, and a refused sample opens one more micro-batch.
    """
    micro_batches = [_open_micro_batch(limits, new_row)]
    groups: set[int] = set()
    complete = False
    for sample in samples:
        groups.add(sample.group_id)
        if limits.groups_per_step is not None and len(groups) > limits.groups_per_step:
            complete = True
            break
        if _place(sample, micro_batches[-1], limits.token_budget):
            continue
        if limits.groups_per_step is None and len(micro_batches) == limits.num_micro_batches:
            complete = True
            break
        micro_batches.append(_open_micro_batch(limits, new_row))
        _place(sample, micro_batches[-1], limits.token_budget)
    complete = complete or len(groups) == limits.groups_per_step
    filled = [micro_batch for micro_batch in micro_batches if any(row.samples for row in micro_batch)]
    return StepPlan(tuple(_close(micro_batch, new_row) for micro_batch in filled), complete)


def _open_micro_batch(limits: Limits, new_row: Callable[[], RowShape]) -> list[_OpenRow]:
    return [_OpenRow(new_row()) for _ in range(limits.num_ranks)]


def _place(sample: Sample, rows: list[_OpenRow], token_budget: int) -> bool:
    """Put the sample into a row, or refuse it: then the micro-batch is closed."""
    fitting = [row for row in rows if row.shape.with_sample(sample).num_tokens <= token_budget]
    home = [row for row in rows if any(held.group_id == sample.group_id for held in row.samples)]
    chosen = next((row for row in home if row in fitting), None)
    if chosen is None and fitting:
        lightest = min(fitting, key=lambda row: row.shape.num_pairs)
        busiest = max(row.shape.num_pairs for row in rows)
        evens_out = lightest.shape.with_sample(sample).num_pairs <= busiest
        chosen = lightest if not home or not lightest.samples or evens_out else None
    if chosen is None:
        return False
    chosen.shape = chosen.shape.with_sample(sample)
    chosen.samples.append(sample)
    return True


def _close(rows: list[_OpenRow], new_row: Callable[[], RowShape]) -> MicroBatch:
    """Give idle ranks half of the costliest row: affinity must not leave a rank without work."""
    while idle := [row for row in rows if not row.samples]:
        busiest = max(rows, key=lambda row: row.shape.num_pairs if len(row.samples) > 1 else -1)
        if len(busiest.samples) < 2:
            break
        middle = len(busiest.samples) // 2
        idle[0].samples, busiest.samples = busiest.samples[middle:], busiest.samples[:middle]
        for row in (idle[0], busiest):
            row.shape = _shape_of(row.samples, new_row)
    return tuple(tuple(row.samples) for row in rows)


def _shape_of(samples: list[Sample], new_row: Callable[[], RowShape]) -> RowShape:
    shape = new_row()
    for sample in samples:
        shape = shape.with_sample(sample)
    return shape
