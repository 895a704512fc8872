"""What keeping every token costs: a worker at 5,000 tokens/s with all its payload, and without.

Worker, server and consumer are processes of their own. The worker is the real one; the consumer does with the store
what a trainer does with it, short of training. Without the payload the worker skips what turns are written as, and
nothing else. Both kinds of run take turns, so that a slow minute of the machine hits both.
"""

import asyncio
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection as Database

from agrpo.inference.client import is_healthy
from agrpo.rollout.worker import WorkerSpec, work
from agrpo.store import Attempt, Store, drafts, groups, runs, samples, steps
from agrpo.store.steps import StepRow
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.scripted_server import ScriptedServer

Say = Callable[[str], None]

TOKENS_PER_S = 5000
ANSWER_TOKENS = 128
NUM_GENERATIONS = 8
NUM_CONCURRENT = 64
GROUP_TOKENS = ANSWER_TOKENS * NUM_GENERATIONS
TRAINED_EVERY_S = 0.25
WARM_GROUPS = 8
"""Groups that are finished before the clock starts."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One run's wall time, and what its store did."""

    seconds: float
    """From the last warm-up group to the last one."""
    waits_ms: list[float]
    """Every write transaction of the worker, from asking for it to the end of its commit."""
    bytes_per_token: float


class TimedStore(Store):
    """Notes how long each write transaction takes its caller."""

    waits_ms: list[float]

    @contextmanager
    def write(self) -> Iterator[Database]:
        begun = time.perf_counter()
        with super().write() as connection:
            yield connection
        self.waits_ms.append(1000 * (time.perf_counter() - begun))


def store_cost(seconds: float, times: int, say: Say) -> dict[str, Any]:
    """Medians over `times` runs of each kind, each of `seconds` at full speed."""
    num_groups = WARM_GROUPS + round(seconds * TOKENS_PER_S / GROUP_TOKENS)
    full, bare = [], []
    for _ in range(times):
        for kept, costs in ((True, full), (False, bare)):
            costs.append(run_once(num_groups, kept))
            say(f"{'full payloads' if kept else 'no payloads'}: {costs[-1].seconds:.3f} s")
    with_s, without_s = (statistics.median(cost.seconds for cost in costs) for costs in (full, bare))
    waits = np.concatenate([cost.waits_ms for cost in full])
    return {
        "store_overhead": with_s / without_s - 1,
        "store_overhead_runs_s": {"full": [c.seconds for c in full], "stubbed": [c.seconds for c in bare]},
        "tokens_per_s": (num_groups - WARM_GROUPS) * GROUP_TOKENS / with_s,
        "commit_wait_p99_ms": float(np.percentile(waits, 99)),
        "commit_wait_p50_ms": float(np.percentile(waits, 50)),
        "num_commits": len(waits),
        "bytes_per_token": statistics.median(cost.bytes_per_token for cost in full),
    }


def run_once(num_groups: int, keeps_payload: bool) -> Cost:
    """One run in a folder of its own, until so many groups are finished."""
    with tempfile.TemporaryDirectory() as folder, _server() as server:
        settings = {"num_generations": NUM_GENERATIONS, "max_concurrent_rollouts": NUM_CONCURRENT}
        world = RunWorld(Path(folder), server, {**settings, "max_completion_length": ANSWER_TOKENS})
        runs.set_allowance(world.attempt, 1, 10**12)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        spec = world.spec(rows(2 * num_groups), [by_place])
        worker = context.Process(target=_work, args=(spec, world.process_id, keeps_payload, theirs))
        worker.start()
        _consume(world, num_groups)
        ours.send("end")
        waits_ms = ours.recv()
        worker.join()
        return _cost(world, num_groups, waits_ms)


def by_place(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Something that differs inside a group."""
    return [float(place) for place in range(len(completion_ids))]


@contextmanager
def _server() -> Iterator[ScriptedServer]:
    """Where the paced server's process listens."""
    place = ScriptedServer()  # finds a free port; the process listens there in its place
    arguments = [str(place.port), str(TOKENS_PER_S), str(ANSWER_TOKENS)]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.durable.paced_server", *arguments])
    try:
        while not is_healthy(place.url):
            assert process.poll() is None, "the server did not start"
            time.sleep(0.1)
        yield place
    finally:
        process.kill()
        process.wait()


def _work(spec: WorkerSpec, process_id: int, keeps_payload: bool, pipe: Connection) -> None:
    """The worker's process, until it is told to end; then it says how long its transactions took."""
    if not keeps_payload:
        groups.turn_rows = lambda *_: []
        drafts.add = lambda *_: None
    store = TimedStore.open(spec.store_url)
    assert isinstance(store, TimedStore)
    store.waits_ms = []
    asyncio.run(_work_until_told(spec, Attempt(store, spec.run_id, spec.token), process_id, pipe))
    store.close()
    pipe.send(store.waits_ms)


async def _work_until_told(spec: WorkerSpec, attempt: Attempt, process_id: int, pipe: Connection) -> None:
    working = asyncio.ensure_future(work(spec, attempt, process_id))
    told = asyncio.ensure_future(asyncio.to_thread(pipe.recv))
    await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    await working


def _consume(world: RunWorld, num_groups: int) -> None:
    """Record a step of whatever is pending, and finish it, until so many groups have come."""
    num_samples, step = 0, 0
    while num_samples < num_groups * NUM_GENERATIONS:
        time.sleep(TRAINED_EVERY_S)
        ids = [sample.sample_id for sample in samples.pending(world.store, "run")]
        if ids:
            step += 1
            members = [StepRow(0, 0, place, sample_id) for place, sample_id in enumerate(ids)]
            steps.record(world.attempt, step, members, 0)
            steps.finish(world.attempt, step, f"digest {step}", {})
            num_samples += len(ids)


def _cost(world: RunWorld, num_groups: int, waits_ms: list[float]) -> Cost:
    ready = sorted(group.ready_at for group in groups.groups(world.store, "run") if group.ready_at is not None)
    with world.store.read() as connection:
        num_turns: int = connection.exec_driver_sql("SELECT count(*) FROM turns").scalar_one()
    world.store.close()
    size = sum(path.stat().st_size for path in world.folder.glob("agrpo.db*"))
    return Cost(ready[num_groups - 1] - ready[WARM_GROUPS - 1], waits_ms, size / max(1, num_turns * ANSWER_TOKENS))
