"""Prefect's API for a flow that is started from the command line: the configured one, else a server of its own."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import prefect
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from agrpo.errors import Outage
from agrpo.inference.command import free_port
from agrpo.launch import supervisor
from agrpo.launch.child import last_lines
from flows.api import require_api
from flows.telemetry import NO_TELEMETRY

_START_LIMIT_S = 120.0
_FLUSH_LIMIT_S = 3.0
_QUIET = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    **NO_TELEMETRY,
}


@contextmanager
def prefect_api(log_path: Path) -> Iterator[None]:
    """Have an API while the block runs.

    Prefect's own temporary server shares our process group, so Ctrl-C would end it before it hears how the run ended;
    ours lives in a session of its own and writes the same history, which `prefect server start` shows later.
    Raises Outage when the configured one is away.
    """
    if PREFECT_API_URL.value():
        require_api()
        yield
        return
    port = free_port()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with _supervised(port, log_path) as server:
        _wait(f"http://127.0.0.1:{port}/api/health", server, log_path)
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
            try:
                yield
            finally:
                # What Prefect still holds back it would offer to a server that is gone, for a minute.
                APILogHandler().flush()
                EventsWorker.drain_all(timeout=_FLUSH_LIMIT_S)


@contextmanager
def _supervised(port: int, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server under a supervisor, which ends it when we are gone, however we go."""
    where = str(Path(prefect.__file__).parent.parent)
    listen = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "error", "--lifespan", "on")
    uvicorn = (sys.executable, "-m", "uvicorn", "--app-dir", where, "--factory", "prefect.server.api.server:create_app")
    overseer = (sys.executable, "-I", "-S", supervisor.__file__, "--log", str(log_path.absolute()), "--")
    server = subprocess.Popen(
        [*overseer, *uvicorn, *listen],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **_QUIET},
        start_new_session=True,
    )
    assert server.stdin is not None
    server.stdin.write(b"0\n")  # it starts the command when it is told an id
    server.stdin.flush()
    try:
        yield server
    finally:
        server.terminate()
        server.wait()


def _wait(url: str, server: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=2.0):
            return
        time.sleep(0.1)
    raise Outage(f"Prefect's server did not start; the end of its log {log_path}:\n{last_lines(log_path)}")
