"""Loops that have gone silent: a process may live and do nothing (docs/design.md, decisions).

A loop says in the store that it went round, by its own wall clock. That time is only compared with the one before: how
long nothing new has come is counted here, by a clock that nobody sets, and not while the store is away.
"""

import time
from collections.abc import Callable, Sequence

from agrpo.errors import Outage
from agrpo.launch.tracked import Tracked
from agrpo.store import Attempt, events, processes
from agrpo.store.processes import Kind

_EVERY_S = 5.0
MACHINE = "machine"
"""The loop of whoever looks after a worker on another machine."""
_MACHINE_SILENCE_S = 20.0


class LoopWatch:
    """Listens to the loops of a run's processes."""

    def __init__(self, attempt: Attempt, owns_run: bool = True) -> None:
        """`owns_run`: give up workers on other machines that are silent; nobody else would."""
        self._attempt = attempt
        self._owns_run = owns_run
        self._seen_at: dict[int, float] = {}
        self._said: dict[tuple[Kind, int, str], float] = {}
        self._heard_at: dict[tuple[Kind, int, str], float] = {}
        self._process_ids: dict[tuple[Kind, int], int] = {}
        self._has_looked = False
        self._due_at = 0.0

    def look(self) -> None:
        """Note who has spoken since the last look; what was said before the first one is no sign of life."""
        now = time.monotonic()
        try:
            beats = processes.heartbeats(self._attempt.store, self._attempt.run_id)
        except Outage:
            self._heard_at = dict.fromkeys(self._heard_at, now)  # nobody could be heard
            raise
        for beat in beats:
            loop = (beat.kind, beat.index, beat.loop)
            if self._has_looked and self._said.get(loop) != beat.at:
                self._heard_at[loop] = now
            self._said[loop] = beat.at
        self._has_looked = True

    def silent_s(self, kind: Kind, index: int) -> dict[str, float]:
        """For how many seconds each loop of a process that was ever heard has said nothing."""
        now = time.monotonic()
        return {loop: now - at for (k, i, loop), at in self._heard_at.items() if (k, i) == (kind, index)}

    def check(self, children: Sequence[Tracked], end_hung: Callable[[int, str], None]) -> None:
        """Every few seconds: have the children ended of which a loop has been silent for longer than they may be."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + _EVERY_S
        self.look()
        for child in children:
            limit_s = child.spec.silence_limit_s
            if limit_s is None or child.state != "running":
                continue
            if self._process_ids.get((child.spec.kind, child.spec.index)) != child.process_id:
                self._forget(child)  # what was heard was the process before
            for loop, silent_s in self.silent_s(child.spec.kind, child.spec.index).items():
                if silent_s > limit_s:
                    end_hung(child.process_id, f"hangs: its loop {loop!r} has said nothing for {silent_s:.0f} s "
                             f"(limit {limit_s:.0f} s)")  # fmt: skip
                    self._forget(child)  # once: it has its time to end
                    break
        if self._owns_run:
            self._give_up_silent({child.process_id for child in children})

    def _give_up_silent(self, own: set[int]) -> None:
        """End the rows of workers whose machine is silent: nobody here can see whether they live."""
        now = time.monotonic()
        for record in processes.live(self._attempt.store, self._attempt.run_id):
            if record.kind != "worker" or record.id in own or record.token != self._attempt.token:
                continue
            seen_at = self._seen_at.setdefault(record.id, now)
            silent_s = now - max(seen_at, self._heard_at.get((record.kind, record.index, MACHINE), seen_at))
            if silent_s > _MACHINE_SILENCE_S:
                reason = f"worker {record.index} on {record.host} is given up: silent for {silent_s:.0f} s"
                processes.ended(self._attempt, record.id, None, reason)
                events.add(self._attempt, "given_up", reason, process_id=record.id, pid=record.pid)

    def _forget(self, child: Tracked) -> None:
        kind, index = child.spec.kind, child.spec.index
        self._process_ids[kind, index] = child.process_id
        self._heard_at = {loop: at for loop, at in self._heard_at.items() if loop[:2] != (kind, index)}
