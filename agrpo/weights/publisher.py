"""Publishing: the trainer's weights to every server, all or nothing per server (async-grpo.md 11, fault 7)."""

import asyncio
import importlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from agrpo.errors import BadInput, WeightSyncError
from agrpo.inference.capabilities import FILE_BACKEND, NCCL_BACKEND
from agrpo.inference.http import HttpServer, run_blocking
from agrpo.weights.phases import Phases, PhaseTimes, update_server

TRANSPORTS = {
    NCCL_BACKEND: "agrpo.weights.nccl_transport:NcclTransport",
    FILE_BACKEND: "agrpo.weights.file_transport:FileTransport",
}
"""By the server's backend (`--weight-transfer-config`), best first; import paths, because NCCL needs vLLM and a GPU."""


class Transport(Protocol):
    """How weights travel; one publish is prepare, send to each server, discard."""

    def prepare(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int, urls: Sequence[str]) -> None:
        """Collect the tensors."""

    async def send(self, phases: Phases) -> None:
        """Drive start, update and finish on one paused server."""

    def discard(self) -> None:
        """Let go of the tensors."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one publish did."""

    times: dict[str, float]
    """Seconds: `barrier` until the weights are collected (the servers generate on), `pause` and `transfer` of the
    slowest server."""
    confirmed: list[str]
    """Servers that serve the new version."""
    failed: dict[str, WeightSyncError]
    """The others; they generate on, and a retry sends everything again."""


class Publisher:
    """Sends weights from rank 0 to servers given by URL."""

    def __init__(self, folder: Path, timeout_s: float, token: int = 0) -> None:
        """`folder`: for weight files, below the run's folder. `timeout_s`: of each call to a server. `token`: of the
        attempt that they belong to."""
        self._token = token
        self._timeout_s = timeout_s
        self._folder = folder
        self._transports: dict[str, Transport] = {}

    def publish(
        self,
        named_tensors: Iterable[tuple[str, torch.Tensor]],
        version: int,
        urls: Sequence[str],
        backend: str = FILE_BACKEND,
    ) -> SyncReport:
        """Send all weights, under the checkpoint's names, to every server at once, as policy `version`.

        `backend` is that of the servers. One that fails is in the report and not an exception: the others have the
        new weights.
        """
        if backend not in self._transports:
            self._transports[backend] = load_transport(backend, self._folder, self._timeout_s, self._token)
        transport = self._transports[backend]
        begun = time.monotonic()
        try:
            transport.prepare(named_tensors, version, urls)
            barrier_s = time.monotonic() - begun
            outcomes = run_blocking(self._update_all(transport, version, urls))
        finally:
            transport.discard()
        done = {url: outcome for url, outcome in outcomes.items() if isinstance(outcome, PhaseTimes)}
        return SyncReport(
            times={
                "barrier": barrier_s,
                "pause": max((times.pause_s for times in done.values()), default=0.0),
                "transfer": max((times.transfer_s for times in done.values()), default=0.0),
            },
            confirmed=list(done),
            failed={url: outcome for url, outcome in outcomes.items() if isinstance(outcome, WeightSyncError)},
        )

    async def _update_all(
        self, transport: Transport, version: int, urls: Sequence[str]
    ) -> dict[str, PhaseTimes | WeightSyncError]:
        outcomes = await asyncio.gather(*(self._update_one(transport, version, url) for url in urls))
        return dict(zip(urls, outcomes, strict=True))

    async def _update_one(self, transport: Transport, version: int, url: str) -> PhaseTimes | WeightSyncError:
        async with HttpServer(url, self._timeout_s, keep_alive=False) as server:
            try:
                return await update_server(Phases(server, version), transport.send)
            except WeightSyncError as error:
                return error


def drivable_backends(on_gpu: bool) -> list[str]:
    """Backends of servers that a trainer on a GPU or CPU can send weights to, best first."""
    return list(TRANSPORTS) if on_gpu else [FILE_BACKEND]


def load_transport(backend: str, folder: Path, timeout_s: float, token: int = 0) -> Transport:
    """The transport for servers of that backend. Raises BadInput when what it needs is not installed."""
    module, _, attribute = TRANSPORTS[backend].partition(":")
    try:
        found: Transport = getattr(importlib.import_module(module), attribute)(folder, timeout_s, token)
    except ImportError as error:
        raise BadInput(f"weight backend {backend!r} needs a package that is not installed here: {error}") from error
    return found
