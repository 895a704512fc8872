"""A run of `agrpo train` with a tiny model and a real vLLM server, in a folder and processes of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from agrpo.store import Store, processes, runs
from tests.worlds.tiny_model import make_tiny_model

NAME = "tiny"
AGRPO = str(Path(sys.executable).parent / "agrpo")

ROWS = '''
"""Prompts of one number; digits are rewarded."""


def rows():
    return [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(64)]


def digits(completions, **columns):
    return [sum(letter.isdigit() for letter in reply[-1]["content"]) / 16 for reply in completions]
'''


class TinyRun:
    """A folder with a run file, and the commands started in it."""

    def __init__(self, folder: Path, **trainer: Any) -> None:
        self.folder = folder
        make_tiny_model(folder / "model")
        (folder / "rows.py").write_text(ROWS)
        (folder / "run.yaml").write_text(yaml.safe_dump(self._content(trainer)))
        self.store = Store.open(f"sqlite:///{folder}/runs/agrpo.db")
        self.store.migrate()

    @staticmethod
    def _content(trainer: dict[str, Any]) -> dict[str, Any]:
        fast = {"num_generations": 4, "max_completion_length": 16, "token_budget": 512, "groups_per_step": 2}
        pace = {"learning_rate": 1e-3, "max_staleness": 1, "threads": 1, "gradient_checkpointing": False}
        return {
            "name": NAME,
            "model": {"path": "./model"},
            "data": {"rows": "rows.py:rows"},
            "rewards": ["rows.py:digits"],
            "trainer": {**fast, **pace, **trainer},
            "servers": {"max_model_len": 128, "threads": 1, "orphan_grace_s": 60},
            "limits": {"backoff_s": 0.1},
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `agrpo ARGUMENTS` in the folder."""
        env = {**os.environ, "PREFECT_HOME": str(self.folder / "prefect"), "OMP_NUM_THREADS": "1"}
        for name in ("AGRPO_DATABASE_URL", "PREFECT_API_URL"):
            env.pop(name, None)
        log = (self.folder / "agrpo.log").open("a")
        return subprocess.Popen([AGRPO, *arguments], cwd=self.folder, env=env, stdout=log, stderr=log, text=True)

    def log(self) -> str:
        """What the commands printed."""
        return (self.folder / "agrpo.log").read_text()

    def summary(self) -> runs.RunSummary:
        """What the store says of the run."""
        return runs.summary(self.store, NAME)

    def step(self) -> int:
        """Last finished step."""
        found = runs.find_run(self.store, NAME)
        return found.step if found else 0

    def wait(self, what: str, true: Callable[[], bool], flow: "subprocess.Popen[str]", limit_s: float = 240.0) -> None:
        """Wait until it is true while the flow lives."""
        deadline = time.monotonic() + limit_s
        while not true():
            assert flow.poll() is None, f"the flow ended before {what}:\n{self.log()}"
            assert time.monotonic() < deadline, f"not in {limit_s:.0f} s: {what}\n{self.log()}"
            time.sleep(0.05)

    def wait_for_steps(self, number: int, flow: "subprocess.Popen[str]") -> None:
        """Wait for this many further steps."""
        goal = self.step() + number
        self.wait(f"step {goal}", lambda: self.step() >= goal, flow)

    def kill(self, kind: str, flow: "subprocess.Popen[str]") -> None:
        """SIGKILL for the living process of that kind, and wait until another has taken its place."""
        pid = self.alive()[kind]
        os.kill(pid, signal.SIGKILL)
        self.wait(f"another {kind}", lambda: self.alive().get(kind, pid) != pid, flow)

    def alive(self) -> dict[str, int]:
        """Process id of each kind that runs."""
        return {process.kind: process.pid for process in processes.live(self.store, NAME)}

    def leftovers(self) -> list[str]:
        """Command lines of processes that still work in the folder or for it."""
        return [line for line in _command_lines() if str(self.folder) in line]


def _command_lines() -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if int(entry.name) != os.getpid():
                found.append(f"{text} in {os.readlink(entry / 'cwd')}")
        except OSError:
            continue
    return found
