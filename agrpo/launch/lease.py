"""Keeps a run's lease while its launcher lives, in a thread of its own: no slow child or store call may cost it."""

import threading
import time
from collections.abc import Callable

from agrpo.errors import LeaseLost, Outage
from agrpo.store import Attempt, leases


class LeaseKeeper:
    """Renews the lease every `every_s` seconds and calls `on_lost` once when it is gone."""

    def __init__(self, attempt: Attempt, ttl_s: float, every_s: float, on_lost: Callable[[Exception], None]) -> None:
        self._attempt = attempt
        self._ttl_s = ttl_s
        self._every_s = every_s
        self._on_lost = on_lost
        self._renewed_at = time.monotonic()
        self._trying_since: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Renew, and go on doing so. Raises like `renew`."""
        self.renew()
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; the lease itself runs on until it is released or expires."""
        self._stopped.set()

    def is_surely_held(self) -> bool:
        """Nobody can have taken the lease since the last renewal: its time is not over, and we live."""
        return time.monotonic() - self._renewed_at < self._ttl_s

    def renew(self) -> None:
        """Renew now. Raises LeaseLost after a takeover, Outage when the store does not answer."""
        before = time.monotonic()
        leases.renew(self._attempt, self._ttl_s)
        self._renewed_at = before
        self._trying_since = None

    def check_time(self) -> None:
        """Raise LeaseLost when renewing has failed, or hung, until the lease ran out.

        Counted from the first vain try, not from the last success: a process that was suspended gets one try.
        """
        since = self._trying_since
        if since is not None and time.monotonic() - since > self._ttl_s - self._every_s:
            raise LeaseLost(
                f"the lease on run {self._attempt.run_id!r} could not be renewed for {self._ttl_s:.0f} s: look whether "
                f"the store {self._attempt.store.url.rpartition('@')[2]} answers, then resume the run"
            )

    def _keep(self) -> None:
        while not self._stopped.wait(self._every_s):
            if self._trying_since is None:
                self._trying_since = time.monotonic()
            try:
                self.renew()
            except Outage:
                continue
            except Exception as error:
                return self._on_lost(error)


class LeaseFollower(LeaseKeeper):
    """Renews nothing: looks whether the lease is still that of an attempt whose launcher is elsewhere."""

    def is_surely_held(self) -> bool:
        """Never: only the launcher that keeps it could know without asking."""
        return False

    def renew(self) -> None:
        """Look now. Raises LeaseLost after a takeover, Outage when the store does not answer."""
        self._attempt.check()
        self._trying_since = None
