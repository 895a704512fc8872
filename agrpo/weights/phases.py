"""The phases of one weight update on one server, each checked and named."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agrpo.errors import AgrpoError, WeightSyncError
from agrpo.inference.http import HttpServer, quote

CLEANUP_S = 30.0
"""Longest wait for each call that tidies up after a failure."""
UNKNOWN_VERSION = "unknown"
"""What a server says it serves after an update that failed half-way, until one succeeds."""


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Seconds of one server's update."""

    pause_s: float
    transfer_s: float
    """From paused to generating again."""


class Phases:
    """The calls of one update of one server to one version; each raises WeightSyncError with its own name."""

    def __init__(self, server: HttpServer, version: int) -> None:
        self.server = server
        self.version = version
        self.weights_touched = False
        """Whether the server may hold something else than before the update."""

    async def pause(self) -> None:
        """Freeze generation; requests in flight stay and go on after the update."""
        await self._call("pause", "POST", "/pause?mode=keep")

    async def start(self) -> None:
        """Open the update, closing one that a dead trainer left open."""
        status, text = await self._exchange("start", "POST", "/start_weight_update")
        if status >= 400 and "already active" in text:
            # vLLM closes an update when its message cannot be read.
            await self._exchange("start", "POST", "/update_weights", {"update_info": {}})
            status, text = await self._exchange("start", "POST", "/start_weight_update")
        self._check("start", status, text)

    async def update(self, update_info: Mapping[str, Any]) -> None:
        """Make the server load the weights."""
        self.weights_touched = True
        await self._call("update", "POST", "/update_weights", {"update_info": dict(update_info)})

    async def finish(self) -> None:
        """Close the update and forget what was computed under the old weights, the prefix cache included."""
        await self._call("finish", "POST", "/finish_weight_update", {"weight_version": str(self.version)})
        status, text = await self._exchange("finish", "POST", "/reset_prefix_cache?reset_running_requests=true")
        # A server without this endpoint has cleared its cache at the pause.
        if status != 404:
            self._check("finish", status, text)

    async def confirm(self) -> None:
        """Ask the server which version it serves now."""
        try:
            answer = await self.server.get("/weight_info")
        except AgrpoError as error:
            raise WeightSyncError("confirm", str(error)) from error
        if answer.get("weight_version") != str(self.version):
            raise WeightSyncError(
                "confirm",
                f"{self.server.base_url} serves version {answer.get('weight_version')!r}, expected '{self.version}'",
            )

    async def resume(self, timeout_s: float | None = None) -> None:
        """Let generation go on."""
        await self._call("resume", "POST", "/resume", timeout_s=timeout_s)

    async def tidy(self) -> None:
        """After a failure: say that the weights are unknown if they may have changed, and resume in any case."""
        limit_s = min(CLEANUP_S, self.server.timeout_s)
        if self.weights_touched:
            with contextlib.suppress(AgrpoError):
                await self.server.exchange(
                    "POST", "/update_weight_version", {"new_version": UNKNOWN_VERSION}, timeout_s=limit_s
                )
        with contextlib.suppress(AgrpoError):
            await self.resume(limit_s)

    async def _call(
        self, phase: str, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> None:
        self._check(phase, *await self._exchange(phase, method, path, body, timeout_s))

    async def _exchange(
        self, phase: str, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> tuple[int, str]:
        try:
            return await self.server.exchange(method, path, body, timeout_s)
        except AgrpoError as error:
            raise WeightSyncError(phase, str(error)) from error

    def _check(self, phase: str, status: int, text: str) -> None:
        if status >= 400:
            raise WeightSyncError(phase, f"{self.server.base_url} answered {status}: {quote(text)}")
        if not text.lstrip().startswith("{"):
            raise WeightSyncError(phase, f"{self.server.base_url} answered no JSON object: {quote(text)}")


async def update_server(phases: Phases, send: Callable[[Phases], Awaitable[None]]) -> PhaseTimes:
    """Pause, send, confirm, resume; on any failure the server is resumed and its version does not advance.

    Raises:
        WeightSyncError: names the phase; the whole update is to be repeated.
    """
    begun = time.monotonic()
    try:
        await phases.pause()
        paused = time.monotonic()
        await send(phases)
        await phases.confirm()
        await phases.resume()
    except BaseException:
        await phases.tidy()
        raise
    return PhaseTimes(paused - begun, time.monotonic() - paused)
