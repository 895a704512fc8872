"""Publishing: the trainer's weights to every server, all or nothing per server (async-grpo.md 11, fault 7)."""

import asyncio
import importlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from agrpo.errors import AgrpoError, BadInput, WeightSyncError
from agrpo.inference.client import ServerClient
from agrpo.inference.http import HttpServer, run_blocking
from agrpo.weights.phases import Phases, PhaseTimes, update_server

TRANSPORTS = {
    "file": "agrpo.weights.file_transport:FileTransport",
    "nccl": "agrpo.weights.nccl_transport:NcclTransport",
}
"""Import paths, because the second one needs vLLM and a GPU."""


class Transport(Protocol):
    """How weights travel; one publish is prepare, send to each server, discard."""

    backend: str
    """The name that servers know it by (`--weight-transfer-config`)."""

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

    def __init__(self, folder: Path, timeout_s: float, transport: str = "file") -> None:
        """`folder`: for weight files, below the run's folder. `timeout_s`: of each call to a server."""
        self._timeout_s = timeout_s
        self._transport = load_transport(transport, folder, timeout_s)

    @property
    def backend(self) -> str:
        """The weight-transfer backend that the servers must have."""
        return self._transport.backend

    def publish(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int, urls: Sequence[str]
    ) -> SyncReport:
        """Send all weights, under the checkpoint's names, to every server at once, as policy `version`.

        A server that fails is in the report and not an exception: the others have the new weights.
        """
        begun = time.monotonic()
        try:
            self._transport.prepare(named_tensors, version, urls)
            barrier_s = time.monotonic() - begun
            outcomes = run_blocking(self._update_all(version, urls))
        finally:
            self._transport.discard()
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

    def served_version(self, url: str) -> str | None:
        """What the server at `url` says it serves ("default": its first checkpoint); None when it does not answer."""

        async def ask() -> str | None:
            async with ServerClient(url, self._timeout_s) as client:
                return await client.weight_version()

        try:
            return run_blocking(ask())
        except AgrpoError:
            return None

    async def _update_all(self, version: int, urls: Sequence[str]) -> dict[str, PhaseTimes | WeightSyncError]:
        outcomes = await asyncio.gather(*(self._update_one(version, url) for url in urls))
        return dict(zip(urls, outcomes, strict=True))

    async def _update_one(self, version: int, url: str) -> PhaseTimes | WeightSyncError:
        async with HttpServer(url, self._timeout_s, keep_alive=False) as server:
            try:
                return await update_server(Phases(server, version), self._transport.send)
            except WeightSyncError as error:
                return error


def load_transport(name: str, folder: Path, timeout_s: float) -> Transport:
    """The transport of that name in TRANSPORTS, or at an import path "package.module:Class"."""
    path = TRANSPORTS.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise BadInput(
            f"weight transport {name!r} is none of {', '.join(TRANSPORTS)}, nor a path like package.module:Class"
        )
    try:
        found: Transport = getattr(importlib.import_module(module), attribute)(folder, timeout_s)
    except ImportError as error:
        raise BadInput(f"weight transport {name!r} needs a package that is not installed here: {error}") from error
    return found
