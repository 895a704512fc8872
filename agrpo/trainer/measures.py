"""What a rank measures while it trains, and what rank 0 reads from the store, as one window of metrics."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from agrpo.metrics import Window, is_weight, weight_name
from agrpo.store import Attempt, groups, metrics
from agrpo.store.groups import GroupStats
from agrpo.trainer.feed import StepOrder
from agrpo.trainer.mfu import Arithmetic
from agrpo.trainer.rows import Row

SCORED_ORDER = "rollout/num_groups_scored"
"""Groups counted so far, logged so that the next attempt counts on from there."""
_TERM_MEANS = {
    "logp_difference": "sampling/sampling_logp_difference/mean",
    "ratio": "sampling/importance_sampling_ratio/mean",
    "masked": "sampling/masked_mean",
    "sampler_mass": "sampling/sampler_mass",
    "entropy": "entropy",
    "low": "clip_ratio/low_mean",
    "high": "clip_ratio/high_mean",
}


class Measures:
    """The window of this rank."""

    def __init__(self, arithmetic: Arithmetic | None = None) -> None:
        self.window = Window()
        self._arithmetic = arithmetic
        self._seconds: dict[str, float] = {}
        self._step_began = time.monotonic()

    def begin(self) -> None:
        """Training begins now."""
        self._step_began = time.monotonic()

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a duration of the step, in seconds."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(name, time.monotonic() - began)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to a duration of the step."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def add_row(self, row: Row, marks: dict[str, Tensor], aux_loss: Tensor | None) -> None:
        """Marks of a row's terms, before masking."""
        for mark, name in _TERM_MEANS.items():
            if mark in marks:
                self._add_mean(name, marks[mark])
        self._add_extremes(marks)
        if "low" in marks:
            self._add_mean("clip_ratio/region_mean", marks["low"] + marks["high"])
            self.window.add_all("clip_ratio/low_min", _per_sample(marks["low"], row))
            self.window.add_all("clip_ratio/high_max", _per_sample(marks["high"], row))
        # Several terms may stand for one token, so the tokens with a term are counted, not the terms.
        num_tokens, num_trained = row.num_tokens, len(torch.unique(row.positions))
        self.window.add("batch/masked_token_frac", 1 - num_trained / max(num_tokens, 1), weight=num_tokens)
        if aux_loss is not None:
            self.window.add("aux_loss", float(aux_loss.detach()))

    def end_step(self, order: StepOrder, token_budget: int) -> None:
        """Close a step: its batch, and how long each part of it took."""
        step_s = time.monotonic() - self._step_began
        self._step_began = time.monotonic()
        for name, seconds in self._seconds.items():
            self.window.add(f"perf/{name}", seconds)
        self.window.add("perf/step_s", step_s)
        rate = self.window.add_rate
        rate("perf/fwd_bwd_forwarded_tokens_per_s", order.num_tokens, self._seconds.get("fwd_bwd_s", 0.0))
        rate("perf/wall_clock_forwarded_tokens_per_s", order.num_tokens, step_s)
        rate("perf/wall_clock_trained_tokens_per_s", order.num_trained, step_s)
        if self._arithmetic is not None:
            num_pairs = sum(trie.num_pairs for tries in order.tries for trie in tries)
            needed_s = self._arithmetic.seconds(order.num_tokens, num_pairs, num_devices=len(order.tries[0]))
            rate("perf/fwd_bwd_mfu", needed_s, self._seconds.get("fwd_bwd_s", 0.0))
            rate("perf/wall_clock_mfu", needed_s, step_s)
        self._seconds.clear()
        self._add_batch(order, token_budget)

    def take(self) -> Window:
        """The window so far; a new one begins in place, as others hold it."""
        taken = Window()
        taken.merge(self.window)
        self.window.clear()
        return taken

    def _add_mean(self, name: str, mark: Tensor) -> None:
        known = mark[~torch.isnan(mark)]
        if len(known):
            self.window.add(name, float(known.mean(dtype=torch.float64)), weight=len(known))

    def _add_extremes(self, marks: dict[str, Tensor]) -> None:
        ratio, difference = (marks[name][~torch.isnan(marks[name])] for name in ("ratio", "logp_difference"))
        if len(ratio):
            self.window.add("sampling/importance_sampling_ratio/min", float(ratio.min()))
            self.window.add("sampling/importance_sampling_ratio/max", float(ratio.max()))
            self.window.add("sampling/sampling_logp_difference/max", float(difference.max()))

    def _add_batch(self, order: StepOrder, token_budget: int) -> None:
        add, tokens = self.window.add, order.num_tokens
        add("batch/forwarded_tokens_per_step", tokens)
        add("batch/trained_tokens_per_step", order.num_trained)
        add("batch/samples_per_step", len(order.samples))
        add("batch/groups_per_step", len({sample.group_id for sample in order.samples}))
        add("batch/microbatches_per_step", len(order.micro_batches))
        add("batch/pad_frac", 0.0)
        self.window.add_rate("batch/packing_ratio", order.num_raw_tokens, tokens)
        for tries in order.tries:
            mean_pairs = sum(trie.num_pairs for trie in tries) / len(tries)
            add("batch/row_imbalance", max(trie.num_pairs for trie in tries) / max(mean_pairs, 1))
            for trie in tries:
                add("batch/samples_per_row", len(trie.forks))
                add("batch/row_tokens_mean", trie.num_tokens)
                add("batch/row_tokens_max", trie.num_tokens)
                add("batch/row_fill_frac", trie.num_tokens / token_budget)


def _per_sample(mark: Tensor, row: Row) -> list[float]:
    """Mean of a mark over the terms of each sample."""
    known = ~torch.isnan(mark)
    totals = torch.zeros(row.num_samples, 2, dtype=torch.float64, device=mark.device)
    totals.index_add_(0, row.samples, torch.stack([torch.where(known, mark, 0.0), known.to(mark.dtype)], 1).double())
    return [total / count for total, count in totals.tolist() if count]


class GroupMeter:
    """Metrics of scored groups and of the workers, read from the store by rank 0."""

    def __init__(self, attempt: Attempt, window: Window) -> None:
        self._attempt = attempt
        self._window = window
        logged = metrics.series(attempt.store, attempt.run_id, last=1)
        self._order = int(logged[-1][1].get(SCORED_ORDER, 0)) if logged else 0
        self._window_id = metrics.last_window(attempt.store, attempt.run_id)
        self._waiting: dict[int, GroupStats] = {}
        self._read_at = time.monotonic()

    def read(self) -> None:
        """Count what was scored and measured since the last reading."""
        now = time.monotonic()
        generated = 0.0
        for group in groups.scored_since(self._attempt.store, self._attempt.run_id, self._order):
            self._order = group.ready_order
            if group.drop_reason is None:
                self._waiting[group.group_id] = group
            generated += sum(rollout.num_generated for rollout in group.rollouts)
            self._add_group(group)
        self._window.add_rate("rollout/generated_tokens_per_s", generated, now - self._read_at)
        self._read_at = now
        for measured in metrics.windows_since(self._attempt.store, self._attempt.run_id, self._window_id):
            self._window_id = measured.id
            for name, value in measured.values.items():
                self._window.add(name, value)

    @property
    def scored_order(self) -> int:
        """Groups counted so far."""
        return self._order

    def forget(self) -> None:
        """Delete the workers' windows that were counted."""
        metrics.forget_windows(self._attempt, self._window_id)

    def trained(self, order: StepOrder) -> None:
        """Rewards of the groups in a step; means are over its samples."""
        self.read()
        counts = Counter(sample.group_id for sample in order.samples)
        for group_id, num_samples in counts.items():
            group = self._waiting.get(group_id)
            if group is None:
                continue
            for name, value in group.stats.items():
                if name.endswith("group_std"):
                    self._window.add(name, value, weight=num_samples)
            self._window.add("reward_kept", group.stats.get("reward", float("nan")), weight=num_samples)
        # Groups are taken in the order in which they became ready: earlier ones are done with.
        oldest = min((self._waiting[id].ready_order for id in counts if id in self._waiting), default=0)
        self._waiting = {id: group for id, group in self._waiting.items() if group.ready_order >= oldest}

    def _add_group(self, group: GroupStats) -> None:
        num_rollouts = len(group.rollouts)
        for name, value in group.stats.items():
            is_reward = name.startswith("rewards/") or name in ("reward", "reward_group_std")
            if "/" in name and not is_reward and not is_weight(name):
                self._window.add(name, value, weight=group.stats.get(weight_name(name), num_rollouts))
            elif name in ("frac_reward_zero_std", "reward_dropped"):
                self._window.add(name, value)
        for rollout in group.rollouts:
            self._window.add("reward", rollout.reward)
            for name, reward in rollout.rewards.items():
                self._window.add(f"rewards/{name}/mean", float("nan") if reward is None else reward)
