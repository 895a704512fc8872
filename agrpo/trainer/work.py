"""What a trainer does for its run beside computing: rank 0 reads and writes the store, the others follow its word."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers

from agrpo.allowance import allowance_tokens, first_allowance, full_step_tokens
from agrpo.errors import Outage
from agrpo.store import Attempt, Store, events, metrics, processes, pruning, runs, steps
from agrpo.store.pruning import Keep
from agrpo.trainer import ranks
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.checkpoint import CheckpointShelf, Choice
from agrpo.trainer.feed import Ending, Feed, Pace, StepOrder
from agrpo.trainer.measures import SCORED_ORDER, GroupMeter, Measures
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.publishing import PolicySync
from agrpo.trainer.stopping import StopSwitch
from agrpo.trees import Limits

PATIENCE_S = 30.0
"""How long rank 0 waits for samples before it lets the other ranks' collective end and begin again."""
LOOK_EVERY_S = 1.0
BEAT_S = 5.0


class RunWork:
    """One rank's part in a run; only rank 0 writes."""

    def __init__(
        self,
        attempt: Attempt,
        weights: PolicyWeights,
        args: AsyncGRPOConfig,
        token_budget: int,
        checkpoint_root: Path,
        sync: PolicySync,
        stop: StopSwitch,
        measures: Measures,
        attention_backend: str,
        watch: Callable[[], None] = lambda: None,
        keep_payloads: Keep = "all",
    ) -> None:
        self.token_budget = token_budget
        self._attempt = attempt
        self._weights = weights
        self._args = args
        self._sync = sync
        self._attention_backend = attention_backend
        self._watch = watch
        self._keep_payloads = keep_payloads
        self._is_first = ranks.rank() == 0
        limits = Limits(ranks.world_size(), args.gradient_accumulation_steps, token_budget, args.groups_per_step)
        self._feed = Feed(attempt, Pace(limits, args.max_staleness), stop, measures.window, self._look)
        self._meter = GroupMeter(attempt, measures.window)
        self._shelf = CheckpointShelf(attempt, checkpoint_root)
        self._saved_at = self._looked_at = self._beaten_at = time.monotonic()

    @property
    def store(self) -> Store:
        """Where samples lie."""
        return self._attempt.store

    def start(self) -> Choice:
        """The checkpoint to load, the same on every rank; says what it passed over."""
        choice: Choice = ranks.from_first(self._shelf.choose() if self._is_first else None)
        if self._is_first:
            for line in choice.skipped:
                events.add(self._attempt, "checkpoint_skipped", line)
                print(f"checkpoint passed over: {line}", flush=True)
            self._note_environment()
        return choice

    def begin(self, step: int) -> None:
        """Everything is loaded as it was after `step`."""
        self._sync.prepare()
        if not self._is_first:
            return
        if runs.get_run(self.store, self._attempt.run_id).allowance_tokens is None:
            args = self._args
            tokens = first_allowance(
                self.token_budget, ranks.world_size(), args.gradient_accumulation_steps, args.max_staleness
            )
            runs.set_allowance(self._attempt, 0, tokens)
        if step >= self._feed.last_recorded:
            self._sync.settle(step, self._weights.digest())

    def next_order(self, step: int) -> StepOrder | Ending:
        """The step's order; every rank gets rank 0's."""
        while True:
            order: StepOrder | Ending | None = ranks.from_first(
                self._feed.next_order(step, PATIENCE_S) if self._is_first else None
            )
            if order is not None:
                break
        if self._is_first and isinstance(order, StepOrder):
            processes.beat(self._attempt, "trainer", 0, "train", f"step {step}")
            if not order.is_replay:
                self._meter.trained(order)
        return order

    def alive(self, detail: str) -> None:
        """Rank 0 says so in the store every few seconds: a long step is no hang."""
        if self._is_first and time.monotonic() - self._beaten_at > BEAT_S:
            with contextlib.suppress(Outage):  # a step needs no database until it is done
                processes.beat(self._attempt, "trainer", 0, "train", detail)
            self._beaten_at = time.monotonic()

    def close(self, order: StepOrder) -> None:
        """The step is made: note its weights, let the workers go on, publish."""
        self._sync.prepare()
        if not self._is_first:
            return
        digest = self._weights.digest()
        values = {"num_tokens": order.num_tokens, "num_trained": order.num_trained}
        steps.finish(self._attempt, order.step, digest, values)
        if order.step < self._feed.last_recorded:
            return
        full = full_step_tokens(order.num_raw_tokens, order.num_groups, self._args.groups_per_step)
        runs.set_allowance(self._attempt, order.step, allowance_tokens(full, self._args.max_staleness))
        if order.is_replay:
            self._sync.settle(order.step, digest)
        else:
            self._sync.after_step(order.step, digest)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log a step once; NaN and infinity are kept."""
        if self._is_first:
            metrics.log(self._attempt, step, {**values, SCORED_ORDER: float(self._meter.scored_order)})

    def checkpoint_is_due(self) -> bool:
        """Whether checkpoint_minutes have passed since the last one."""
        is_due = time.monotonic() - self._saved_at > self._args.checkpoint_minutes * 60
        return bool(ranks.from_first(is_due))

    def begin_checkpoint(self, step: int) -> Path:
        """An empty folder, known to every rank."""
        folder: Path = ranks.from_first(self._shelf.begin(step) if self._is_first else None)
        return folder

    def finish_checkpoint(self, step: int, filled: Path, limit: int | None) -> None:
        """When every rank has written: complete it, make it the cursor, delete old ones."""
        ranks.all_here()
        if self._is_first:
            self._shelf.finish(step, filled)
            self._shelf.rotate(limit)
            pruning.prune(self._attempt, self._keep_payloads)
            self._meter.forget()
        ranks.all_here()
        self._saved_at = time.monotonic()

    def _look(self) -> None:
        """While waiting for samples: a server may have been restarted, the worker may be gone."""
        if time.monotonic() - self._looked_at > LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._watch()
            self._sync.keep_current()

    def _note_environment(self) -> None:
        """Record what bitwise equality depends on, and say when it is not as it was."""
        now = environment(self._attention_backend)
        before = runs.get_run(self.store, self._attempt.run_id).environment or now
        words = [f"other {key} than before" for key in now if key in before and before[key] != now[key]]
        # An earlier version could have made other bits of the same steps, whatever of this it noted.
        words += [f"an earlier version of agrpo noted no {key}" for key in now if key not in before]
        if words:
            events.add(self._attempt, "environment_changed", "; ".join(words), was=before)
        runs.set_environment(self._attempt, now)


def environment(attention_backend: str) -> dict[str, object]:
    """What the bits of the weights depend on."""
    on_gpu = torch.cuda.is_available()
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "ranks": ranks.world_size(),
        "machine": os.uname().machine,
        "attention_backend": attention_backend,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def repeats_itself(known: Mapping[str, object]) -> bool:
    """Whether the same steps make the same bits there: always on a CPU, on a GPU with deterministic kernels."""
    return known["device"] == "cpu" or known["deterministic"] is True
