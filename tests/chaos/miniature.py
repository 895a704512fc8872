"""A whole run in one process and one thread, through the real store, feed and checkpoints.

Its weights are a hash of everything trained so far, in order: two runs with the same weights trained the same steps.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection

from agrpo.metrics import Window
from agrpo.store import (
    Attempt,
    Store,
    checkpoints,
    drafts,
    events,
    groups,
    leases,
    metrics,
    policies,
    processes,
    runs,
    servers,
    steps,
    workers,
)
from agrpo.store.drafts import NewTurn
from agrpo.trainer.checkpoint import CheckpointShelf
from agrpo.trainer.feed import Feed, Pace, StepOrder, recorded_order
from agrpo.trainer.stopping import StopSwitch
from agrpo.trees import Limits
from tests.worlds.small_groups import DEAD, group, scored, turn, two_samples

RUN = "miniature"
NUM_PROMPTS = 8
GROUPS_PER_STEP = 2
MAX_STALENESS = 1
START = "start"


class Crash(BaseException):
    """Stands for SIGKILL: nothing after it happens in this process."""


class CrashingStore(Store):
    """Dies in its k-th write: before it is committed, or just after, when nobody has heard of it yet."""

    num_writes = 0
    crash_at: int | None = None
    committed = False

    @contextmanager
    def write(self) -> Iterator[Connection]:
        self.num_writes += 1
        is_last = self.num_writes == self.crash_at
        with super().write() as connection:
            yield connection
            if is_last and not self.committed:
                raise Crash
        if is_last:
            raise Crash


def open_store(url: str, crash_at: int | None = None, committed: bool = False) -> CrashingStore:
    """A migrated store, which dies in that write."""
    store = CrashingStore.open(url)
    assert isinstance(store, CrashingStore)
    store.crash_at, store.committed = crash_at, committed
    return store


def migrate(folder: Path) -> None:
    """Make an empty store in a folder."""
    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    store.migrate()
    store.close()


def weights_after(weights: str, order: StepOrder) -> str:
    """The weights that a step makes of others."""
    ids = [[[sample.sample_id for sample in row] for row in ranks] for ranks in order.micro_batches]
    return hashlib.sha256(f"{weights} {ids}".encode()).hexdigest()


def live(store: Store, folder: Path) -> str:
    """One attempt, to the end of the run; the final weights."""
    if runs.find_run(store, RUN) is None:
        runs.create_run(store, RUN, {"trainer": {"max_staleness": MAX_STALENESS}}, "hash", str(folder), 10_000)
    attempt = leases.acquire(store, RUN, DEAD)
    runs.set_status(attempt, "running")
    events.add(attempt, "attached", f"attempt {attempt.token}")
    for record in processes.live(store, RUN):
        if record.token < attempt.token:
            processes.ended(attempt, record.id, None, "left")
    servers.set_state(attempt, servers.register(attempt, "http://server", 0), "healthy")
    worker = _Worker(attempt)
    weights = _Trainer(attempt, folder).train(worker)
    runs.set_status(attempt, "finished")
    leases.release(attempt, "finished")
    return weights


class _Worker:
    """Claims and commits one prompt a call; some are skipped, some have no signal, one answers far too late."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._id = processes.register(attempt, "worker", 0, 10, 10, 1, "worker.log")
        self._say(ended=False)

    def work(self) -> None:
        claims = groups.claim(self._attempt, self._id, 1, NUM_PROMPTS)
        for claim in claims:
            self._answer(claim)
        self._say(ended=not claims)

    def _answer(self, claim: groups.Claim) -> None:
        version = policies.current_version(self._attempt.store, RUN)
        match claim.prompt_index:
            case 1:
                groups.skip(self._attempt, claim.group_id, "too_long")
            case 2:
                groups.commit(self._attempt, group(claim, version=version, reason="no_signal"))
            case 3:
                both = (two_samples(), scored([turn([1, 2, 3], [7])]))
                groups.commit(self._attempt, group(claim, *both, version=version))
            case 4:
                first = turn([1, 2, 3], [4, 5])
                drafts.add(self._attempt, [NewTurn(claim.group_id, 0, 0, version, None, first)])
                drafts.add(
                    self._attempt, [NewTurn(claim.group_id, 0, 1, version, first, turn([1, 2, 3, 4, 5, 9], [6]))]
                )
                groups.commit(self._attempt, group(claim, version=version))
            case 6:
                groups.commit(self._attempt, group(claim, version=0))
            case _:
                groups.commit(self._attempt, group(claim, version=version))

    def _say(self, ended: bool) -> None:
        workers.state(self._attempt, self._id, 0, not ended, ended, 0)


class _Trainer:
    """Steps from the feed, a checkpoint after every second one, a policy after each."""

    def __init__(self, attempt: Attempt, folder: Path) -> None:
        self._attempt = attempt
        self._shelf = CheckpointShelf(attempt, folder / "checkpoints")
        pace = Pace(Limits(1, 1, 64, GROUPS_PER_STEP), MAX_STALENESS)
        self._feed = Feed(attempt, pace, StopSwitch(), Window())
        processes.register(attempt, "trainer", 0, 11, 11, 1, "trainer.log")

    def train(self, worker: _Worker) -> str:
        choice = self._shelf.choose()
        weights = (choice.path / "weights").read_text() if choice.path else START
        step = choice.step
        if step >= self._feed.last_recorded:
            self._publish(step, weights)
        while True:
            order = self._feed.next_order(step + 1, patience_s=0.0)
            if order is None:
                worker.work()
                continue
            if not isinstance(order, StepOrder):
                break
            step, weights = order.step, weights_after(weights, order)
            self._close(order, weights)
        cursor = checkpoints.cursor(self._attempt.store, RUN)
        if cursor is None or cursor.step < step:
            self._save(step, weights)
        return weights

    def _close(self, order: StepOrder, weights: str) -> None:
        assert steps.finish(self._attempt, order.step, weights, {}) != "different"
        metrics.log(self._attempt, order.step, {"reward": 1.0})
        if order.step >= self._feed.last_recorded:
            self._publish(order.step, weights)
        if order.step % 2 == 0:
            self._save(order.step, weights)

    def _publish(self, step: int, weights: str) -> None:
        known = policies.policies(self._attempt.store, RUN)
        if not known or known[-1].digest != weights:
            policies.publish(self._attempt, len(known), step, weights)

    def _save(self, step: int, weights: str) -> None:
        folder = self._shelf.begin(step) / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_text(weights)
        self._shelf.finish(step, folder)
        self._shelf.rotate(1)


def ledger_weights(store: Store) -> str:
    """The weights that a run makes which trains this ledger without interruption."""
    weights = START
    for step in range(1, steps.last_recorded(store, RUN) + 1):
        weights = weights_after(weights, recorded_order(store, RUN, step, 1))
    return weights
