"""`agrpo ui`: Prefect's server on the history that runs have left."""

import os
import sys
from typing import NoReturn

from agrpo.doctor.machine import is_taken
from agrpo.errors import BadInput
from flows.telemetry import NO_TELEMETRY

HOST = "127.0.0.1"


def server_environment(port: int) -> dict[str, str]:
    """Prefect's server reads where it listens, and where its pages find it, from the environment."""
    return {
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        **NO_TELEMETRY,
    }


def serve_interface(port: int) -> NoReturn:
    """Become Prefect's server. Raises BadInput when somebody listens there already."""
    if is_taken(HOST, port):
        raise BadInput(
            f"--port {port}: {HOST}:{port} is in use; if that is Prefect, open http://{HOST}:{port}, "
            f"else choose another, such as --port {port + 100}"
        )
    print(f"http://{HOST}:{port} (Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    # In our place, so that whoever ends this command ends the server.
    os.execve(sys.executable, command, {**os.environ, **server_environment(port)})
