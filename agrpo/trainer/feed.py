"""Where steps come from: recorded ones first, as they were; then pending samples, planned and recorded before use."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from agrpo import versions
from agrpo.errors import BadInput
from agrpo.metrics import Window
from agrpo.records import TrainingSequence
from agrpo.store import Attempt, Store, groups, policies, processes, runs, samples, steps, workers
from agrpo.store.samples import PendingSample
from agrpo.store.steps import StepRow
from agrpo.trainer.stopping import StopSwitch
from agrpo.trees import Limits, MicroBatch, PrefixTrie, Sample, StepPlan, plan_step

POLL_S = 0.1
BEAT_S = 1.0

Ending = Literal["data ended", "stopped"]


@dataclass(frozen=True)
class StepOrder:
    """What every rank is told about a step."""

    step: int
    micro_batches: tuple[MicroBatch, ...]
    """Samples by micro-batch, rank and position."""
    is_replay: bool = False
    """Fixed by an earlier attempt."""

    @property
    def samples(self) -> list[Sample]:
        """Every sample of the step."""
        return [sample for micro_batch in self.micro_batches for row in micro_batch for sample in row]

    @property
    def num_trained(self) -> int:
        """Loss terms of the whole step: what its gradient is divided by."""
        return sum(sample.num_trained for sample in self.samples)

    @property
    def num_raw_tokens(self) -> int:
        """Sample tokens of the whole step, before packing."""
        return sum(sample.num_tokens for sample in self.samples)

    @property
    def num_groups(self) -> int:
        """Groups that have a sample in the step."""
        return len({sample.group_id for sample in self.samples})

    @cached_property
    def tries(self) -> tuple[tuple[PrefixTrie, ...], ...]:
        """What each row shares, by micro-batch and rank."""
        return tuple(
            tuple(PrefixTrie.of(sample.key for sample in row) for row in micro_batch)
            for micro_batch in self.micro_batches
        )

    @property
    def num_tokens(self) -> int:
        """Forwarded tokens of the whole step: those that samples of a row share count once."""
        return sum(trie.num_tokens for micro_batch in self.tries for trie in micro_batch)


@dataclass(frozen=True, slots=True)
class Pace:
    """The settings that decide what may be taken."""

    limits: Limits
    max_staleness: int


class Feed:
    """Orders on rank 0; it alone reads what is pending and records steps."""

    def __init__(
        self,
        attempt: Attempt,
        pace: Pace,
        stop: StopSwitch,
        window: Window,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._attempt = attempt
        self._pace = pace
        self._stop = stop
        self._window = window
        self._while_waiting = while_waiting
        self._last_recorded = steps.last_recorded(attempt.store, attempt.run_id)
        self._beaten_at = 0.0
        self._waits_since: float | None = None
        self._known: dict[int, Sample] = {}

    @property
    def last_recorded(self) -> int:
        """Steps up to this one are replayed."""
        return self._last_recorded

    def next_order(self, step: int, patience_s: float) -> StepOrder | Ending | None:
        """The order of this step, or why there is none; None when `patience_s` passed without enough samples."""
        if self._stopped():
            return "stopped"
        if step <= self._last_recorded:
            return recorded_order(self._attempt.store, self._attempt.run_id, step, self._pace.limits.num_ranks)
        begun = time.monotonic()
        self._waits_since = self._waits_since or begun
        while True:
            decided = self._decide(step)
            if decided is not None:
                self._window.add("perf/rollout_wait_s", time.monotonic() - self._waits_since)
                self._waits_since = None
                return decided
            if time.monotonic() - begun > patience_s:
                return None
            if self._stop.wait(POLL_S) or self._stopped():
                return "stopped"

    def _decide(self, step: int) -> StepOrder | Ending | None:
        # The workers' word comes before the look at the samples: what they committed by then is seen.
        supply = self._supply()
        pending = self._usable(samples.pending(self._attempt.store, self._attempt.run_id))
        if supply == "stalled" and self._leaves_room(pending):
            supply = "flows"
        plan = plan_step(self._with_tokens(pending), self._pace.limits)
        if plan.samples and (plan.complete or supply != "flows"):
            self._measure(pending, plan)
            return self._record(step, plan)
        if supply == "ended" and not plan.samples:
            return "data ended"
        self._beat(f"waiting for samples: {len(pending)} pending, workers: {supply}")
        self._while_waiting()
        return None

    def _supply(self) -> Literal["flows", "stalled", "ended"]:
        """Whether more samples can come without a further step."""
        said = workers.states(self._attempt.store, self._attempt.run_id)
        if not said or any(word.in_flight for word in said):
            return "flows"
        if all(word.data_ended for word in said):
            # A worker that died takes its word with it, and leaves prompts that the others will take over.
            return "flows" if groups.any_claimed(self._attempt.store, self._attempt.run_id) else "ended"
        allowed = runs.get_run(self._attempt.store, self._attempt.run_id).allowance_step
        closed = (word.data_ended or (not word.admission_open and word.allowance_step_seen == allowed) for word in said)
        return "stalled" if all(closed) else "flows"

    def _leaves_room(self, pending: Sequence[PendingSample]) -> bool:
        """Whether what was dropped since the workers spoke lets them start another group."""
        allowed = runs.get_run(self._attempt.store, self._attempt.run_id).allowance_tokens
        return allowed is not None and sum(sample.num_tokens for sample in pending) < allowed

    def _usable(self, pending: Sequence[PendingSample]) -> list[PendingSample]:
        """Drop, with the rest of their rollouts, samples that are too old or too long; a begun rollout is finished."""
        current = policies.current_version(self._attempt.store, self._attempt.run_id)
        limits = self._pace.limits
        open_ones = [sample for sample in pending if not sample.rollout_started]
        stale = {s.sample_id for s in open_ones if versions.is_stale(current, s.version, self._pace.max_staleness)}
        oversize = {s.sample_id for s in open_ones if not limits.allow(s)} - stale
        for gone, reason, metric in (
            (stale, "stale", "sample/dropped_stale_count"),
            (oversize, "oversize", "batch/dropped_oversize_count"),
        ):
            if gone:
                samples.drop(self._attempt, sorted(gone), reason)
                self._window.add(metric, len(gone))
        lost = {sample.rollout_id for sample in pending if sample.sample_id in stale | oversize}
        kept = [sample for sample in pending if sample.rollout_id not in lost]
        if not all(limits.allow(sample) for sample in kept):
            budget = limits.token_budget
            raise BadInput(f"token_budget={budget} is less than a sample whose rollout is half trained: raise it again")
        return kept

    def _with_tokens(self, pending: Sequence[PendingSample]) -> list[Sample]:
        """The same samples for the planner; each is loaded once."""
        new = [sample.sample_id for sample in pending if sample.sample_id not in self._known]
        loaded = {sequence.sample_id: _for_planner(sequence) for sequence in samples.load(self._attempt.store, new)}
        known = self._known | loaded
        self._known = {sample.sample_id: known[sample.sample_id] for sample in pending}
        return list(self._known.values())

    def _record(self, step: int, plan: StepPlan) -> StepOrder:
        version = policies.current_version(self._attempt.store, self._attempt.run_id)
        rows = [
            StepRow(micro_batch, rank, position, sample.sample_id)
            for micro_batch, ranks in enumerate(plan.micro_batches)
            for rank, row in enumerate(ranks)
            for position, sample in enumerate(row)
        ]
        steps.record(self._attempt, step, rows, version)
        return StepOrder(step, plan.micro_batches)

    def _measure(self, pending: Sequence[PendingSample], plan: StepPlan) -> None:
        version = policies.current_version(self._attempt.store, self._attempt.run_id)
        taken = {sample.sample_id for sample in plan.samples}
        self._window.add("rollout/queue_size", len(pending))
        for sample in pending:
            if sample.sample_id in taken:
                age = versions.staleness(version, sample.version)
                for spread in ("mean", "max"):
                    self._window.add(f"sample/staleness_{spread}", age)
                    self._window.add(f"sample/forwarded_tokens_{spread}", sample.num_tokens)
                self._window.add("sample/trained_tokens_mean", sample.num_trained)
                self._window.add("sample/time_in_queue_s", max(0.0, time.time() - sample.queued_at))

    def _stopped(self) -> bool:
        if not self._stop.requested and runs.get_run(self._attempt.store, self._attempt.run_id).request == "stop":
            self._stop.request()
        return self._stop.requested

    def _beat(self, detail: str) -> None:
        if time.monotonic() - self._beaten_at > BEAT_S:
            processes.beat(self._attempt, "trainer", 0, "train", detail)
            self._beaten_at = time.monotonic()


def _for_planner(sequence: TrainingSequence) -> Sample:
    return Sample.of(sequence.sample_id, sequence.group_id, sequence.token_ids, sequence.num_trained)


def recorded_order(store: Store, run_id: str, step: int, num_ranks: int) -> StepOrder:
    """A recorded step with its members in their places."""
    members = steps.rows(store, run_id, step)
    sequences = samples.load(store, [member.sample_id for member in members])
    known = {sequence.sample_id: _for_planner(sequence) for sequence in sequences}
    ids = arrange(members, num_ranks)
    rows = tuple(tuple(tuple(known[i] for i in row) for row in micro_batch) for micro_batch in ids)
    return StepOrder(step, rows, is_replay=True)


def arrange(members: Sequence[StepRow], num_ranks: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Recorded members as sample ids by micro-batch, rank and position; with fewer ranks than then, whole rows move
    to further micro-batches."""
    rows: dict[tuple[int, int], tuple[int, ...]] = {}
    for member in members:
        place = (member.micro_batch, member.rank)
        rows[place] = (*rows.get(place, ()), member.sample_id)
    if any(rank >= num_ranks for _, rank in rows):
        dealt = [row for _, row in sorted(rows.items())]
        rows = {divmod(index, num_ranks): row for index, row in enumerate(dealt)}
    count = max((micro_batch for micro_batch, _ in rows), default=-1) + 1
    return tuple(tuple(rows.get((m, rank), ()) for rank in range(num_ranks)) for m in range(count))
