"""A run of real processes with a tiny model and a server of made-up tokens, whose processes may be killed any time."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import yaml

from agrpo.launch.supervisor import read_stat
from agrpo.store import Store, events, groups, processes, runs
from tests.worlds.tiny_model import make_tiny_model
from tests.worlds.verified import check_store

NAME = "killed"
ROOT = Path(__file__).parents[2]

ROWS = '''
"""Prompts of one number; the reward depends on nothing but the tokens."""


def rows():
    return [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(NUM_ROWS)]


def remainder(completion_ids, **columns):
    return [sum(ids) % 7 / 7 for ids in completion_ids]
'''


class KillRun:
    """A folder, a server process, and a launcher that is started again whenever it was killed."""

    def __init__(
        self,
        folder: Path,
        url: str | None = None,
        num_rows: int = 1000,
        limits: dict[str, Any] | None = None,
        **trainer: Any,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        make_tiny_model(folder / "model")
        (folder / "rows.py").write_text(ROWS.replace("NUM_ROWS", str(num_rows)))
        self.store_url = url or f"sqlite:///{folder}/runs/agrpo.db"
        (folder / "run.yaml").write_text(yaml.safe_dump(self._content(trainer, limits or {})))
        self.store = Store.open(self.store_url)
        self.store.migrate()
        self.server: subprocess.Popen[bytes] | None = None
        self.launcher: subprocess.Popen[bytes] | None = None
        self.finished: dict[int, int] = {}
        """Place in the order of every group that was finished at some kill."""

    def __enter__(self) -> "KillRun":
        self.start_server()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.launcher is not None and self.launcher.poll() is None:
            self.launcher.terminate()
            self.launcher.wait(30)
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        if kind is None:
            check_store(self.store)
        self.store.close()

    def _content(self, trainer: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
        small = {"num_generations": 4, "max_completion_length": 16, "token_budget": 512, "groups_per_step": 2}
        pace = {"learning_rate": 1e-3, "max_staleness": 2, "threads": 1, "gradient_checkpointing": False}
        return {
            "name": NAME,
            "model": {"path": "./model"},
            "data": {"rows": "rows.py:rows"},
            "rewards": ["rows.py:remainder"],
            "trainer": {**small, **pace, "save_steps": 3, "save_total_limit": 2, "probe_tolerance": 1e9, **trainer},
            "servers": {"urls": [f"http://127.0.0.1:{self.port}"]},
            "store": {"url": self.store_url},
            "limits": {"restarts": 10_000, "max_attempts": 10_000, "backoff_s": 0.05, **limits},
        }

    def start_server(self) -> None:
        """Start the server of made-up tokens; a new one has none of the run's weights."""
        self.server = self._python("-m", "tests.worlds.token_server", str(self.port))

    def start(self, *name: str) -> None:
        """Start the launcher, for another run of the store where one is named."""
        self.launcher = self._python("-m", "tests.worlds.bare_launcher", "run.yaml", *name)

    def _python(self, *arguments: str) -> "subprocess.Popen[bytes]":
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        env.pop("AGRPO_DATABASE_URL", None)
        with (self.folder / "launcher.log").open("a") as log:
            return subprocess.Popen([sys.executable, *arguments], cwd=self.folder, env=env, stdout=log, stderr=log)

    def log(self) -> str:
        """What launcher and server printed, and the ends of the logs of the run's processes."""
        logs = sorted((self.folder / "runs" / NAME / "logs").glob("*.log"))
        return (self.folder / "launcher.log").read_text() + "".join(f"\n{p}:\n{p.read_text()[-3000:]}" for p in logs)

    def step(self) -> int:
        """Last finished step."""
        found = runs.find_run(self.store, NAME)
        return found.step if found else 0

    def alive(self) -> dict[str, int]:
        """Process id of each kind that runs; a process that was killed a moment ago may still be listed."""
        return {process.kind: process.pid for process in processes.live(self.store, NAME)}

    def processes(self) -> list[int]:
        """Every living process of the run but its server, launchers and supervisors included."""
        server = self.server.pid if self.server else 0
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.folder) in f"{command} {os.readlink(entry / 'cwd')}" and int(entry.name) != server:
                    found.append(int(entry.name))
        return sorted(set(found) - {os.getpid()})

    def wait(self, what: str, true: Callable[[], bool], limit_s: float = 900.0) -> None:
        """Wait until it is true; a launcher that ended otherwise than by a kill is an error."""
        deadline = time.monotonic() + limit_s
        while not true():
            assert time.monotonic() < deadline, f"not in {limit_s:.0f} s: {what}\n{self.log()}"
            self.keep_up()
            time.sleep(0.02)

    def keep_up(self) -> None:
        """Start again what was killed."""
        assert self.launcher is not None and self.server is not None
        ended = self.launcher.poll()
        assert ended in (None, 0, -signal.SIGKILL), f"the launcher ended with {ended}\n{self.log()}"
        if ended == -signal.SIGKILL:
            self.start()
        if self.server.poll() is not None:
            self.start_server()

    def ended(self) -> bool:
        """Whether the run came to its end."""
        return self.launcher is not None and self.launcher.poll() == 0

    def kill_many(self, number: int, random: Random, pause_s: float, at_work: float) -> Iterator[str]:
        """Kill so often, after pauses up to this long, and say each time what. No more once the run has ended.

        `at_work` is the share of kills that wait for a further step first; the others may hit processes that load.
        """
        for _ in range(number):
            if random.random() < at_work:
                goal = self.step() + 1
                self.wait(f"step {goal}", lambda goal=goal: self.ended() or self.step() >= goal)
            until = time.monotonic() + random.uniform(0.0, pause_s)
            self.wait("the next kill", lambda until=until: self.ended() or time.monotonic() > until)
            self.note_finished()
            if self.ended():
                break
            yield self.kill_one(random)

    def lost_groups(self) -> list[int]:
        """Groups that were finished at a kill and are not what they were."""
        found = {group.id: group.ready_order for group in groups.groups(self.store, NAME)}
        return [id for id, order in self.finished.items() if found.get(id) != order]

    def note_finished(self) -> None:
        """Remember what is finished now: it must stay so."""
        rows = groups.groups(self.store, NAME) if runs.find_run(self.store, NAME) else []
        self.finished |= {group.id: group.ready_order for group in rows if group.ready_order}

    def kill(self, name: str) -> None:
        """SIGKILL for the launcher, or the process of that kind."""
        assert self.launcher is not None
        os.kill(self.launcher.pid if name == "launcher" else self.alive()[name], signal.SIGKILL)

    def kill_one(self, random: Random) -> str:
        """SIGKILL for a living process of the run, its server, its launcher or a supervisor; what it was."""
        while True:
            victims = self._victims()
            name = random.choice(sorted(victims))
            with suppress(ProcessLookupError):  # it ended by itself since: another one is to be killed
                os.kill(victims[name], signal.SIGKILL)
                return name

    def _victims(self) -> dict[str, int]:
        """Pids by what they are; only what lives, zombies left out."""
        assert self.launcher is not None and self.server is not None
        found = {"launcher": self.launcher.pid, "server": self.server.pid, **self.alive()}
        found = {name: pid for name, pid in found.items() if read_stat(pid) is not None}
        for kind in self.alive().keys() & found.keys():
            stat = read_stat(found[kind])
            if stat is not None and b"supervisor.py" in _command_line(stat.parent):
                found[f"supervisor of {kind}"] = stat.parent
        return found

    def diverged(self) -> list[str]:
        """What resumed trainers said of steps that became other weights than before: must be nothing."""
        kinds = ("replay_differs", "replay_diverged")
        return [event.message for event in events.events(self.store, NAME) if event.kind in kinds]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
