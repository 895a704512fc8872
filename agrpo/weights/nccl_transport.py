"""Weights by NCCL: vLLM's own trainer-side engine, driven through our checked phases. Needs vLLM and a GPU."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from agrpo.errors import WeightSyncError
from agrpo.inference.command import free_port
from agrpo.weights.phases import Phases


class NcclTransport:
    """Broadcasts the weights from this process's GPU to the workers of each server."""

    def __init__(self, folder: Path, timeout_s: float, token: int = 0) -> None:
        self._source = TensorSource()
        self._timeout_s = timeout_s
        self._engines: dict[str, tuple[Any, ControlPlane]] = {}

    def prepare(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int, urls: Sequence[str]) -> None:
        """Keep references to the tensors; vLLM streams them through fixed buffers."""
        self._source.tensors = list(named_tensors)

    async def send(self, phases: Phases) -> None:
        """Connect to the server on first use, then broadcast; a connection that failed is not used again."""
        url = phases.server.base_url
        try:
            if url not in self._engines:
                self._engines[url] = await self._connect(phases)
            engine, control = self._engines[url]
            control.phases = phases
            await in_daemon_thread(engine.send_weights, self._timeout_s)
            await phases.finish()
        except Exception as error:
            self._engines.pop(url, None)
            if isinstance(error, WeightSyncError):
                raise
            raise WeightSyncError("update", f"NCCL transfer to {url} failed: {error!r}") from error

    def discard(self) -> None:
        """Let go of the tensors; the connections stay for the next publish."""
        self._source.tensors = []

    async def _connect(self, phases: Phases) -> tuple[Any, "ControlPlane"]:
        host = urlsplit(phases.server.base_url).hostname or ""
        world = await phases.server.get("/get_world_size")
        control = ControlPlane(phases, asyncio.get_running_loop())
        info = NCCLTrainerInitInfo(
            rank=0,
            master_address=address_towards(host),
            master_port=free_port(),
            world_size=1 + int(world["world_size"]),
        )

        def meet() -> Any:
            return WeightTransferTrainerFactory.trainer_init(info, client=control, source=self._source)

        return await in_daemon_thread(meet, self._timeout_s), control


class ControlPlane:
    """The four calls that vLLM's engine makes, from its own thread, turned into our phases."""

    def __init__(self, phases: Phases, loop: asyncio.AbstractEventLoop) -> None:
        self.phases = phases
        self._loop = loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Make the server's workers join the group, leaving one that an earlier trainer made."""
        server = self.phases.server
        self._wait(server.exchange("POST", "/shutdown_weight_transfer_engine"))
        self._wait(server.post("/init_weight_transfer_engine", {"init_info": init_info}))

    def start_weight_update(self) -> None:
        """Phase start."""
        self._wait(self.phases.start())

    def update_weights(self, update_info: Any) -> None:
        """Phase update."""
        self._wait(self.phases.update(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Left to the transport, which finishes with our version after the broadcast."""

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class TensorSource(WeightSource):
    """Tensors that are already whole, as vLLM's engine wants to read them."""

    def __init__(self) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of each."""
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        # Weights that were gathered from shards lie in main memory; one at a time has room on the GPU.
        on_gpu = torch.cuda.is_available()
        return ((name, tensor.cuda() if on_gpu else tensor) for name, tensor in self.tensors)


async def in_daemon_thread(work: Any, timeout_s: float) -> Any:
    """Run a call that may block for ever, as a broken NCCL group does, without ever waiting for its thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(outcome: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result(outcome) if error is None else done.set_exception(error)

    def run() -> None:
        try:
            outcome, error = work(), None
        except BaseException as caught:
            outcome, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: whoever waited has given up
            loop.call_soon_threadsafe(settle, outcome, error)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await done


def address_towards(host: str) -> str:
    """This machine's address as `host` sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address
