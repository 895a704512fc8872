"""What Prefect's server costs a training step: `python -m benchmarks.prefect_overhead --json`.

One run of `agrpo train` with a server of made-up tokens. The Prefect server that it reports to works and is frozen
(SIGSTOP) by turns, in the order on, off, off, on. Each pair of turns gives one ratio of median step times; the steps
around a change are left out. With the defaults it takes 12 minutes.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import prefect
import yaml

from agrpo.inference.command import free_port
from agrpo.store import Store, metrics, runs
from tests.worlds.kill_run import ROWS
from tests.worlds.tiny_model import make_tiny_model

ROOT = Path(__file__).parent.parent
NAME = "overhead"
ORDER = (True, False, False, True)
"""Whether Prefect's server works: both sides meet every drift alike."""
WARM_UP_STEPS = 30
LEFT_OUT = 2
"""Steps at each end of a turn that may have seen both sides."""
START_LIMIT_S = 300.0
NUM_RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps that were made while Prefect's server worked, or was frozen."""

    is_on: bool
    first: int
    last: int

    def median_s(self, step_times: dict[int, float]) -> float:
        """Median step time in seconds."""
        return statistics.median(step_times[step] for step in range(self.first, self.last + 1))


class Run:
    """A training run without end."""

    def __init__(self, folder: Path, num_layers: int, urls: dict[str, str]) -> None:
        make_tiny_model(folder / "model", num_layers=num_layers)
        (folder / "rows.py").write_text(ROWS.replace("NUM_ROWS", "100000"))
        (folder / "run.yaml").write_text(yaml.safe_dump(_run_file(urls["tokens"])))
        (folder / "runs").mkdir()
        self.store = Store.open(f"sqlite:///{folder}/runs/agrpo.db")
        self.store.migrate()
        env = {**os.environ, "PREFECT_API_URL": f"{urls['prefect']}/api", "PYTHONPATH": str(ROOT)}
        env.pop("AGRPO_DATABASE_URL", None)
        self._log = folder / "train.log"
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "flows", "train", "run.yaml"]
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)

    def step(self) -> int:
        """Last finished step. Raises RuntimeError when the run has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the run ended:\n{self._log.read_text()[-4000:]}")
        found = runs.find_run(self.store, NAME)
        return found.step if found else 0

    def step_times(self) -> dict[int, float]:
        """Seconds of every logged step."""
        return {step: values["perf/step_s"] for step, values in metrics.series(self.store, NAME)}

    def wait_for_step(self, step: int, limit_s: float) -> None:
        """Wait until so many steps are made."""
        deadline = time.monotonic() + limit_s
        while self.step() < step:
            if time.monotonic() > deadline:
                raise RuntimeError(f"step {step} was not made in {limit_s:g} s:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.2)


def _run_file(tokens_url: str) -> dict[str, object]:
    size = {"num_generations": 8, "groups_per_step": 16, "max_completion_length": 16, "token_budget": 1024}
    pace = {"learning_rate": 1e-6, "max_staleness": 4, "threads": 1, "gradient_checkpointing": False}
    return {
        "name": NAME,
        "model": {"path": "./model"},
        "data": {"rows": "rows.py:rows"},
        "rewards": ["rows.py:remainder"],
        "trainer": {**size, **pace, "max_steps": 1_000_000, "save_total_limit": 1, "probe_tolerance": 1e9},
        "servers": {"urls": [tokens_url]},
    }


@contextmanager
def process(folder: Path, name: str, *command: str) -> Iterator[int]:
    """A process of ours, ended with the block; its id."""
    env = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "1"}
    with (folder / f"{name}.log").open("w") as log:
        started = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield started.pid
    finally:
        started.send_signal(signal.SIGCONT)
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(10)
        started.kill()
        started.wait()


def take_turns(run: Run, prefect_pid: int, num_pairs: int, turn_s: float) -> list[Turn]:
    """Let Prefect's server work and freeze it by turns."""
    turns = []
    for number in range(2 * num_pairs):
        is_on = ORDER[number % len(ORDER)]
        os.kill(prefect_pid, signal.SIGCONT if is_on else signal.SIGSTOP)
        first = run.step() + 1 + LEFT_OUT
        until = time.monotonic() + turn_s
        while time.monotonic() < until:
            run.step()
            time.sleep(min(1.0, turn_s))
        run.wait_for_step(first + LEFT_OUT, START_LIMIT_S)
        turns.append(Turn(is_on, first, run.step() - LEFT_OUT))
    os.kill(prefect_pid, signal.SIGCONT)
    return turns


def compare(turns: list[Turn], step_times: dict[int, float]) -> dict[str, float]:
    """Ratios of the pairs, as percent by which a step is longer while Prefect's server works."""
    medians = [turn.median_s(step_times) for turn in turns]
    pairs = [sorted(zip(turns[at : at + 2], medians[at : at + 2], strict=True), key=_off_first) for at in _evens(turns)]
    percent = [100.0 * (on / off - 1.0) for (_, off), (_, on) in pairs]
    chance = random.Random(0)
    resampled = sorted(statistics.median(chance.choices(percent, k=len(percent))) for _ in range(NUM_RESAMPLES))
    sides = {side: [m for turn, m in zip(turns, medians, strict=True) if turn.is_on is side] for side in (True, False)}
    return {
        "overhead_percent": statistics.median(percent),
        "low_percent": resampled[int(0.025 * NUM_RESAMPLES)],
        "high_percent": resampled[int(0.975 * NUM_RESAMPLES) - 1],
        "num_pairs": len(pairs),
        "num_steps": sum(turn.last - turn.first + 1 for turn in turns),
        "step_with_s": statistics.median(sides[True]),
        "step_without_s": statistics.median(sides[False]),
    }


def _off_first(pair: tuple[Turn, float]) -> bool:
    return pair[0].is_on


def _evens(turns: list[Turn]) -> range:
    return range(0, len(turns), 2)


def measure(num_pairs: int, turn_s: float, num_layers: int) -> dict[str, float]:
    """The numbers of one run."""
    ports = {"tokens": free_port(), "prefect": free_port()}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    tokens = (sys.executable, "-m", "tests.worlds.token_server", str(ports["tokens"]))
    factory = ("--factory", "prefect.server.api.server:create_app", "--log-level", "error")
    place = ("--app-dir", str(Path(prefect.__file__).parent.parent), "--port", str(ports["prefect"]))
    with tempfile.TemporaryDirectory(prefix="agrpo-overhead-") as name:
        folder = Path(name)
        with (
            process(folder, "tokens", *tokens),
            process(folder, "prefect", sys.executable, "-m", "uvicorn", *place, *factory) as prefect_pid,
        ):
            _wait_healthy(f"{urls['prefect']}/api/health")
            run = Run(folder, num_layers, urls)
            try:
                run.wait_for_step(WARM_UP_STEPS, START_LIMIT_S)
                return compare(take_turns(run, prefect_pid, num_pairs, turn_s), run.step_times())
            finally:
                run.process.terminate()
                run.process.wait(60)
                run.store.close()


def _wait_healthy(url: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(url, timeout=2.0):
            return
        time.sleep(0.2)
    raise RuntimeError(f"Prefect's server does not answer at {url}")


def main(show: Callable[[str], None] = print) -> None:
    """Read the command line, measure, say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--turn-s", type=float, default=35.0)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.pairs, options.turn_s, options.layers)
    show(json.dumps(found) if options.json else "\n".join(f"{name:18} {value:.4g}" for name, value in found.items()))


if __name__ == "__main__":
    main()
