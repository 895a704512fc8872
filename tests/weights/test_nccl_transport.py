"""The part of the NCCL transport that needs no GPU: what vLLM's trainer engine asks of us becomes our phases."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agrpo.errors import WeightSyncError
from agrpo.inference.http import HttpServer, run_blocking
from agrpo.weights.nccl_transport import ControlPlane, NcclTransport, TensorSource, address_towards, in_daemon_thread
from agrpo.weights.phases import Phases
from tests.worlds.scripted_vllm import ScriptedVllm, scripted_vllm

INIT = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}


def drive(server: ScriptedVllm) -> None:
    """Call the control plane as vLLM's engine does: from a thread, blocking."""

    async def run() -> None:
        async with HttpServer(server.url, 5.0, keep_alive=False) as http:
            control = ControlPlane(Phases(http, 4), asyncio.get_running_loop())

            def engine() -> None:
                control.init_weight_transfer_engine(INIT)
                control.start_weight_update()
                control.update_weights({"names": ["w"]})
                control.finish_weight_update()

            await in_daemon_thread(engine, 5.0)

    run_blocking(run())


def test_the_engines_calls_become_phases() -> None:
    with scripted_vllm() as server:
        server.script["/init_weight_transfer_engine"] = (200, {})
        drive(server)
        assert server.paths() == [
            "/shutdown_weight_transfer_engine",
            "/init_weight_transfer_engine",
            "/start_weight_update",
            "/update_weights",
        ]
        assert server.asked[1][1] == {"init_info": INIT} and server.updates == [{"names": ["w"]}]


def test_a_failing_call_reaches_us_through_the_engine() -> None:
    with scripted_vllm() as server:
        server.script |= {"/init_weight_transfer_engine": (200, {}), "/update_weights": (500, "no")}
        with pytest.raises(WeightSyncError, match="'update'"):
            drive(server)


def test_a_server_that_cannot_connect_fails_by_name(tmp_path: Path) -> None:
    transport = NcclTransport(tmp_path, 2.0)
    transport.prepare([("w", torch.ones(2))], 1, [])

    async def send(server: ScriptedVllm) -> None:
        async with HttpServer(server.url, 2.0) as http:
            await transport.send(Phases(http, 1))

    with scripted_vllm() as server, pytest.raises(WeightSyncError, match="NCCL transfer to http"):
        run_blocking(send(server))


def test_a_call_that_never_returns_is_left_behind() -> None:
    async def run() -> None:
        await in_daemon_thread(lambda: time.sleep(30), 0.1)

    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        run_blocking(run())
    assert time.monotonic() - begun < 5


def test_metadata_agrees_with_the_tensors() -> None:
    source = TensorSource()
    source.tensors = [("a", torch.ones(2, 3)), ("b", torch.ones(1, dtype=torch.bfloat16))]
    described: list[Any] = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    assert described == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]


def test_the_address_is_the_one_that_the_server_sees() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
