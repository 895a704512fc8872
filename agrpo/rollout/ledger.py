"""The worker's side of the store: every call on one thread, so that the event loop never waits for the database."""

import asyncio
import contextlib
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from agrpo.errors import AgrpoError, BadInput
from agrpo.records import GroupCommit
from agrpo.store import Attempt, Membership, drafts, events, groups, metrics, processes, servers, steps, workers
from agrpo.store.drafts import Draft, NewTurn
from agrpo.store.groups import Claim
from agrpo.store.servers import ServerRecord
from agrpo.store.streams import StreamPosition

T = TypeVar("T")

KEEP_INTERVAL_S = 0.02
"""Turns that come back so close together share a transaction; one alone is stored at once."""


@dataclass(frozen=True, slots=True)
class View:
    """What the worker needs to know of the run, read at one moment."""

    policy_version: int
    next_prompt_index: int
    """First prompt index that no worker has claimed."""
    allowance_tokens: int | None
    """None until the trainer has set the first one."""
    allowance_step: int
    pending_tokens: int
    num_elsewhere: int | None
    """Groups that other workers have in flight; None: there is no other worker."""
    wants_work: bool
    """False once somebody asked the run to stop or drain."""
    servers: tuple[ServerRecord, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """What the worker says of itself, for the trainer that must not wait for samples that cannot come."""

    num_in_flight: int
    open: bool
    """Whether it may start another group, once the other workers' groups have come back."""
    data_ended: bool
    allowance_step: int


class Ledger:
    """Claims, commits and words about this worker, written under its attempt."""

    def __init__(self, attempt: Attempt, process_id: int) -> None:
        self._attempt = Membership(attempt.store, attempt.run_id, attempt.token, process_id)
        self._process_id = process_id
        self._index = _worker_index(attempt, process_id)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._turns: queue.SimpleQueue[NewTurn] = queue.SimpleQueue()
        self._next_flush_at = 0.0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self.num_in_flight = 0
        """Groups in hand, as was said last."""
        self.is_leaving = False
        """Set to take no further prompts, whatever the run wants."""

    async def view(self) -> View:
        """Read the run as it is now."""
        return await self._call(self._read_view)

    async def claim(
        self, limit: int, stop_index: int | None, admission: Admission, positions: Sequence[StreamPosition] = ()
    ) -> list[Claim]:
        """Say that groups are in flight, then claim up to `limit` prompts: the trainer never sees a gap between.

        `positions`: where the stream can be read on, as found on the way.
        """

        def claim() -> list[Claim]:
            self._say(admission)
            return groups.claim(self._attempt, self._process_id, limit, stop_index, positions)

        return await self._call(claim)

    async def commit(self, group: GroupCommit) -> None:
        """Store a finished group, in one transaction."""
        await self._after_turns(lambda: groups.commit(self._attempt, group))

    async def drafts(self, group_id: int) -> list[Draft]:
        """The unfinished rollouts of a claimed group."""
        return await self._after_turns(lambda: drafts.of_group(self._attempt.store, group_id))

    async def discard(self, group_id: int) -> None:
        """Forget them."""
        await self._after_turns(lambda: drafts.discard(self._attempt, group_id))

    def keep(self, turn: NewTurn) -> None:
        """Store a turn soon, and before anything that is done with its group later."""
        self._turns.put(turn)
        if self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_at(max(loop.time(), self._next_flush_at), self._start_flush)

    async def skip(self, group_id: int, reason: str, message: str | None = None) -> None:
        """Drop a claimed prompt without rollouts, with an event when there is something to say."""

        def skip() -> None:
            groups.skip(self._attempt, group_id, reason)
            if message is not None:
                events.add(self._attempt, f"prompt_{reason}", message, group_id=group_id)

        await self._after_turns(skip)

    async def skipped(self, start: int, stop: int) -> dict[str, int]:
        """How many of these prompts gave no rollouts, or none with a reward, by reason, in any worker."""
        return await self._call(lambda: groups.skipped(self._attempt.store, self._attempt.run_id, start, stop))

    async def has_trained(self) -> bool:
        """Whether the run has finished a step."""
        return await self._call(lambda: steps.last_finished(self._attempt.store, self._attempt.run_id) > 0)

    async def say(self, admission: Admission) -> None:
        """Replace what this worker last said of itself."""
        await self._call(lambda: self._say(admission))

    async def beat(self, loops: dict[str, str]) -> None:
        """Heartbeats of the loops that went round, with what each is doing."""

        def beat() -> None:
            for loop, detail in loops.items():
                processes.beat(self._attempt, "worker", self._index, loop, detail)

        await self._call(beat)

    async def window(self, values: dict[str, float]) -> None:
        """Append a window of measurements."""
        await self._call(lambda: metrics.window(self._attempt, "worker", self._index, values))

    async def note(self, kind: str, message: str) -> None:
        """Add an event."""
        await self._call(lambda: events.add(self._attempt, kind, message))

    async def distrust(self, server: ServerRecord) -> None:
        """Forget the weights that a server had confirmed: it answers, but has other ones."""

        def distrust() -> None:
            servers.doubt(self._attempt, server.id)
            events.add(self._attempt, "server_lost_weights", f"{server.url} serves other weights than it had confirmed")

        await self._call(distrust)

    def close(self) -> None:
        """Let the call in progress end and take no more; turns that were kept are stored where that is possible."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(AgrpoError):
            self._flush()

    def _start_flush(self) -> None:
        loop = asyncio.get_running_loop()
        self._flush_timer, self._next_flush_at = None, loop.time() + KEEP_INTERVAL_S
        flushed = loop.run_in_executor(self._thread, self._flush)
        flushed.add_done_callback(self._note_failure)

    def _flush(self) -> None:
        turns = []
        with contextlib.suppress(queue.Empty):
            while True:
                turns.append(self._turns.get_nowait())
        if turns:
            drafts.add(self._attempt, turns)

    def _note_failure(self, flushed: "asyncio.Future[None]") -> None:
        if not flushed.cancelled():
            self._failure = self._failure or flushed.exception()

    async def _after_turns(self, function: Callable[[], T]) -> T:
        """Run on the store's thread what must not come before the turns that were kept."""

        def run() -> T:
            self._flush()
            return function()

        return await self._call(run)

    async def _call(self, function: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _say(self, admission: Admission) -> None:
        workers.state(
            self._attempt,
            self._process_id,
            admission.num_in_flight,
            admission.open or self.is_leaving,  # for whoever comes after: the trainer waits for further samples
            admission.data_ended,
            admission.allowance_step,
        )
        self.num_in_flight = admission.num_in_flight

    def _read_view(self) -> View:
        store, run_id = self._attempt.store, self._attempt.run_id
        bounds = workers.bounds(store, run_id, self._process_id)
        return View(
            policy_version=bounds.policy_version,
            next_prompt_index=bounds.next_prompt_index,
            allowance_tokens=bounds.allowance_tokens,
            allowance_step=bounds.allowance_step or 0,
            pending_tokens=bounds.pending_tokens,
            num_elsewhere=bounds.num_elsewhere,
            wants_work=bounds.request == "none" and not self.is_leaving,
            servers=tuple(servers.servers(store, run_id)),
        )


def _worker_index(attempt: Attempt, process_id: int) -> int:
    found: list[Any] = [p for p in processes.live(attempt.store, attempt.run_id) if p.id == process_id]
    if not found:
        raise BadInput(f"process {process_id} is not registered in run {attempt.run_id!r}; the launcher starts workers")
    return int(found[0].index)
