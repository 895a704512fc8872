"""A launcher in a process of its own, so that a test can kill it: attach, adopt or start a server, start a worker.

    python -m tests.launch.launching STORE_URL RUN_DIR GRACE_S SETTINGS_HASH [no-server]

Prints one JSON line when everything runs, then lives until it is told to end (SIGTERM: orderly).
"""

import json
import signal
import sys
import threading
from pathlib import Path

from agrpo.launch.attach import attach
from agrpo.launch.child import ChildSpec
from agrpo.launch.launcher import Launcher
from agrpo.store import Store

URL = "http://127.0.0.1:9"


def specs(grace_s: float, settings_hash: str) -> tuple[ChildSpec, ChildSpec]:
    """A server and a worker; both leave a grandchild that ignores SIGTERM."""
    script = "(trap '' TERM; while :; do sleep 0.05; done) & sleep 300"
    command = ("bash", "-c", script)
    server = ChildSpec(
        "server", 0, command, Path("server.log"), orphan_grace_s=grace_s, settings_hash=settings_hash, url=URL
    )
    return server, ChildSpec("worker", 0, command, Path("worker.log"))


def is_healthy(run_dir: Path, url: str) -> bool:
    """A server is sick when the test says so."""
    return url == URL and not (run_dir / "sick").exists()


def main(url: str, run_dir: Path, grace_s: float, settings_hash: str) -> None:
    store = Store.open(url)
    attempt = attach(store, "r1", {"seed": 1}, "hash", run_dir).attempt
    assert attempt is not None
    server, worker = specs(grace_s, settings_hash)
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    with Launcher(attempt, run_dir, healthy=lambda at: is_healthy(run_dir, at)) as launcher:
        launcher.reap_leftovers(adoptable=[server])
        adopted = launcher.adopt(server)
        if not adopted:
            launcher.start(server)
        launcher.start(worker)
        pids = {child.kind: child.pid for child in launcher.children()}
        print(json.dumps({"adopted": adopted, "token": attempt.token, **pids}), flush=True)
        told_to_end.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
