"""A real vLLM server for tests, started the way a run starts one."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from agrpo.inference.client import is_healthy
from agrpo.inference.command import ServerCommand, free_port, server_command
from agrpo.launch.child import ChildSpec, SupervisedProcess, end_all, last_lines
from agrpo.weights.file_transport import weights_folders
from agrpo.weights.publisher import Publisher

START_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A running server."""

    url: str
    model_path: Path
    """The checkpoint that it started from."""
    weights_dir: Path
    """What a Publisher for it takes as folder."""
    second_run_dir: Path
    """Output folder of a run whose weights it reads, too."""
    log_path: Path


def publish_checkpoint(server: VllmServer) -> None:
    """Make a server serve what it started with."""
    tensors = load_file(server.model_path / "model.safetensors")
    assert Publisher(server.weights_dir, START_LIMIT_S).publish(tensors.items(), 0, [server.url]).confirmed


@contextmanager
def serving(model_path: Path, folder: Path, **settings: object) -> Iterator[VllmServer]:
    """Start a server with the model, wait until it is healthy, end it and all its processes afterwards."""
    weights_dir, second_run_dir = folder / "weights", folder / "second"
    chosen: dict[str, object] = {
        "model": str(model_path),
        "port": free_port(),
        "max_model_len": 256,
        "max_logprobs": 32,
        "threads": min(2, os.cpu_count() or 1),
        "weights_folders": (*weights_folders(weights_dir), *weights_folders(second_run_dir / "weights")),
    }
    command, env = server_command(ServerCommand(**{**chosen, **settings}))
    url = f"http://127.0.0.1:{chosen['port']}"
    log_path = folder / "server.log"
    process = SupervisedProcess(ChildSpec("server", 0, tuple(command), log_path, env=env), tuple(command))
    process.release(0)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not is_healthy(url, 2.0):
            assert not process.has_ended() and time.monotonic() < deadline, last_lines(log_path, 40)
            time.sleep(0.2)
        yield VllmServer(url, model_path, weights_dir, second_run_dir, log_path)
    finally:
        end_all([process], 10.0)
