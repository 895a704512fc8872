"""Keeps the servers' states in the store true, and has a server that hangs ended."""

import threading
import time
from collections.abc import Callable

from agrpo.errors import LeaseLost, Outage
from agrpo.store import Attempt, servers
from agrpo.store.servers import ServerRecord

Healthy = Callable[[str], bool]
"""Whether the server at a URL answers; with a time limit of its own."""

_EVERY_S = 1.0
_MISSES_UNTIL_LOST = 3


class ServerWatch:
    """Asks every server of the run, launched or given by URL, once a second."""

    def __init__(
        self,
        attempt: Attempt,
        healthy: Healthy,
        live_processes: Callable[[], dict[int, float]],
        end_hung: Callable[[int, str], None],
        start_limit_s: float = 900.0,
        hang_limit_s: float = 120.0,
    ) -> None:
        self._attempt = attempt
        self._healthy = healthy
        self._live_processes = live_processes
        self._end_hung = end_hung
        self._start_limit_s = start_limit_s
        self._hang_limit_s = hang_limit_s
        self._answered_at: dict[int, float] = {}
        self._misses: dict[int, int] = {}

    def run(self, stop: threading.Event) -> None:
        """Look until told to stop, or until the run is another attempt's."""
        while not stop.wait(_EVERY_S):
            try:
                self.look()
            except Outage:
                continue
            except LeaseLost:
                return

    def look(self) -> None:
        """Ask each server once and write down what changed."""
        live = self._live_processes()
        for row in servers.servers(self._attempt.store, self._attempt.run_id):
            if row.process_id is None or row.process_id in live:
                self._ask(row, live)
            elif row.state != "lost":
                servers.set_state(self._attempt, row.id, "lost")

    def has_answered(self, process_id: int) -> bool:
        """Whether this process has ever been healthy."""
        return process_id in self._answered_at

    def _ask(self, row: ServerRecord, live: dict[int, float]) -> None:
        if self._healthy(row.url):
            self._misses[row.id] = 0
            if row.process_id is not None:
                self._answered_at[row.process_id] = time.monotonic()
            if row.state != "healthy":
                servers.set_state(self._attempt, row.id, "healthy")
            return
        self._misses[row.id] = self._misses.get(row.id, 0) + 1
        if row.state == "healthy" and self._misses[row.id] >= _MISSES_UNTIL_LOST:
            servers.set_state(self._attempt, row.id, "lost")
        if row.process_id is not None:
            self._end_if_hung(row.process_id, live[row.process_id])

    def _end_if_hung(self, process_id: int, started_at: float) -> None:
        answered_at = self._answered_at.get(process_id)
        limit_s = self._start_limit_s if answered_at is None else self._hang_limit_s
        silent_s = time.monotonic() - (started_at if answered_at is None else answered_at)
        if silent_s > limit_s:
            self._end_hung(process_id, f"has not answered for {silent_s:.0f} s (limit {limit_s:.0f} s)")
