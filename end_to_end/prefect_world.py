"""A Prefect server, a worker and a store of their own, and the commands a person would give them."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agrpo.inference.command import free_port
from agrpo.launch.supervisor import read_stat
from agrpo.store import Store, leases, processes, runs
from tests.worlds.kill_run import ROWS
from tests.worlds.tiny_model import make_tiny_model

ROOT = Path(__file__).parent.parent
PYTHON = os.environ.get("AGRPO_END_TO_END_PYTHON", sys.executable)
"""The interpreter whose Prefect is tried."""


class PrefectWorld:
    """Everything lives in one folder; what was started is ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.store_url = f"sqlite:///{folder}/agrpo.db"
        self.store = Store.open(self.store_url)
        self.store.migrate()
        make_tiny_model(folder / "model")
        (folder / "e2e_rows.py").write_text(ROWS.replace("NUM_ROWS", "1000"))
        self.tokens = free_port()
        self.tokens_url = f"http://127.0.0.1:{self.tokens}"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "PrefectWorld":
        self._start("tokens", "tests.worlds.token_server", str(self.tokens))
        self.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started.values()):
            process.terminate()
        for process in self._started.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
        self.store.close()

    @property
    def environment(self) -> dict[str, str]:
        """What every process here sees."""
        return {
            **os.environ,
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": f"{self.url}/api",
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "AGRPO_DATABASE_URL": self.store_url,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }

    def config(self, name: str, **trainer: Any) -> dict[str, Any]:
        """A run of the tiny model against the server of made-up tokens."""
        small = {"num_generations": 4, "max_completion_length": 16, "token_budget": 512, "groups_per_step": 2}
        pace = {"learning_rate": 1e-3, "max_staleness": 2, "threads": 1, "gradient_checkpointing": False}
        return {
            "name": name,
            "model": {"path": str(self.folder / "model")},
            "data": {"rows": f"{self.folder}/e2e_rows.py:rows"},
            "rewards": [f"{self.folder}/e2e_rows.py:remainder"],
            "trainer": {**small, **pace, "save_steps": 2, "save_total_limit": 2, "probe_tolerance": 1e9, **trainer},
            "servers": {"urls": [self.tokens_url]},
            "evaluation": {
                "steps": 4,
                "num_samples": 2,
                "data": {"rows": f"{self.folder}/e2e_rows.py:rows", "limit": 4},
            },
            "output": str(self.folder / "runs"),
        }

    def start_server(self) -> None:
        """Prefect's server, and wait for it."""
        self._start("server", "flows", "ui", "--port", str(self.port))
        self.wait("Prefect's server is healthy", self._is_healthy)

    def start_worker(self) -> None:
        """A Prefect worker of the process pool."""
        self._start("worker", "prefect", "worker", "start", "--pool", "agrpo-process")

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a module's command, as `python -m ARGUMENTS`."""
        return self._start(f"command-{len(self._started)}", *arguments)

    def log(self, process: "subprocess.Popen[bytes]") -> str:
        """What a command has printed."""
        [name] = [name for name, started in self._started.items() if started is process]
        return (self.folder / f"{name}.log").read_text()

    def lose_power(self, name: str) -> None:
        """SIGKILL at once for Prefect's server, its worker, and the process that holds the run's lease."""
        holder = leases.attempts(self.store, name)[-1].holder.pid
        for process in ("server", "worker"):
            os.killpg(self._started[process].pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # it shared its worker's group
            os.kill(holder, signal.SIGKILL)
        for process in ("server", "worker"):
            self._started[process].wait()

    def boot(self) -> None:
        """Start server and worker again."""
        self.start_server()
        self.start_worker()

    def say(self, *arguments: str, check: bool = True, folder: Path = ROOT) -> str:
        """Run a module's command, by default in the repository, as `python -m ARGUMENTS`; what it printed."""
        done = subprocess.run(
            [PYTHON, "-m", *arguments], cwd=folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0 or not check, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def run_deployment(self, name: str, check: bool = True, **trainer: Any) -> str:
        """Start the run from its deployment, as the command line does; the flow run's id."""
        return self.run_named("agrpo-train/train", check, config=self.config(name, **trainer))

    def run_named(self, deployment: str, check: bool = True, **parameters: Any) -> str:
        """Run a deployment with these parameters; the flow run's id, or what was said instead."""
        given = [part for key, value in parameters.items() for part in ("--param", f"{key}={json.dumps(value)}")]
        printed = self.say("prefect", "deployment", "run", deployment, *given, check=check)
        return next((line.split()[-1] for line in printed.splitlines() if "UUID:" in line), printed)

    def keep_secret(self, block: str, value: str) -> None:
        """Make a Secret block, as a person would in the UI."""
        program = "import sys; from prefect.blocks.system import Secret; Secret(value=sys.argv[2]).save(sys.argv[1])"
        command = [PYTHON, "-c", program, block, value]
        subprocess.run(command, cwd=ROOT, env=self.environment, check=True, capture_output=True)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Prefect's server."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}/api{path}", data, {"content-type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def state(self, flow_run_id: str) -> str:
        """Name of the flow run's state."""
        return str(self.api("GET", f"/flow_runs/{flow_run_id}")["state_name"])

    def step(self, name: str) -> int:
        """Last finished step of a run."""
        found = runs.find_run(self.store, name)
        return found.step if found else 0

    def token(self, name: str) -> int:
        """Number of the run's newest attempt."""
        found = runs.find_run(self.store, name)
        return found.token if found else 0

    def last_flow(self, name: str) -> str:
        """The flow run of the run's newest attempt."""
        return str(leases.attempts(self.store, name)[-1].flow_run_id)

    def kill_flow(self, name: str) -> None:
        """SIGKILL for the process that holds the run's lease."""
        os.kill(leases.attempts(self.store, name)[-1].holder.pid, signal.SIGKILL)

    def alive(self, name: str) -> list[str]:
        """Processes of the run that still live."""
        return [f"{one.kind} {one.pid}" for one in processes.all(self.store, name) if read_stat(one.pid) is not None]

    def wait(self, what: str, true: Callable[[], bool], limit_s: float = 300.0) -> float:
        """Wait until it is true; how long that took, in seconds."""
        begun = time.monotonic()
        while not true():
            assert time.monotonic() - begun < limit_s, f"not in {limit_s:.0f} s: {what}\n{self._logs()}"
            time.sleep(0.1)
        return time.monotonic() - begun

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command, streams = [PYTHON, "-m", *arguments], self.folder / f"{name}.log"
        with streams.open("a") as log:
            self._started[name] = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        return self._started[name]

    def _is_healthy(self) -> bool:
        with suppress(OSError):
            return bool(self.api("GET", "/health"))
        return False

    def _logs(self) -> str:
        logs = [*self.folder.glob("*.log"), *self.folder.glob("runs/*/logs/*.log")]
        return "".join(f"\n{path}:\n{path.read_text()[-2500:]}" for path in logs)
