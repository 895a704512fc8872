"""How close the worker comes to its ideal with slow tools: `python benchmarks/rollout_loop.py --json`.

A scripted server in a process of its own answers every turn after `--turn-s`; each rollout calls one blocking tool that
takes `--tool-s` and says a last sentence. Ideal is that every slot is always at work. Store, scoring and commits run as
in a real worker. `throughput_fraction` is taken between the first and the last quarter of the rollouts, `lag_p99_ms` is
how late the event loop wakes a sleeper, `cpu_ms_per_rollout` is what the worker's process computes meanwhile: one core
bounds the throughput at 1000 / `cpu_ms_per_rollout`.
"""

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from agrpo.rollout.worker import WorkerSpec, work
from agrpo.store import accounting, schema
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.chat_families import QWEN25, family_tokenizer
from tests.worlds.scripted_server import Answer, ScriptedServer

NUM_GENERATIONS = 8
SLEEPER_S = 0.005
TOKENIZER = family_tokenizer(QWEN25)
CALL = '<tool_call>\n{{"name": "wait", "arguments": {{"seconds": {seconds}}}}}\n</tool_call>'


@dataclass(frozen=True, slots=True)
class Load:
    """What the worker is put under."""

    num_concurrent: int
    num_rollouts: int
    tool_s: float
    turn_s: float

    @property
    def rollout_s(self) -> float:
        """Shortest possible duration of one rollout."""
        return self.tool_s + 2 * self.turn_s


def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "waited"


def by_length(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """Something that differs inside a group."""
    return [float(len(ids)) + i for i, ids in enumerate(completion_ids)]


def serve(load: Load, pipe: Connection) -> None:
    """The scripted server, until the pipe closes."""
    call = [*TOKENIZER.encode(CALL.format(seconds=load.tool_s), add_special_tokens=False), 0]
    last = [*TOKENIZER.encode("I have waited.", add_special_tokens=False), 0]
    mark = TOKENIZER.encode("waited", add_special_tokens=False)
    length = len(mark)

    def script(prompt: list[int], params: dict[str, Any], n: int) -> Answer:
        has_waited = any(prompt[i : i + length] == mark for i in range(len(prompt) - 80, len(prompt)))
        return Answer(last if has_waited else call, after_s=load.turn_s)

    with ScriptedServer(script, max_model_len=4096) as server:
        server.metrics = 'vllm:cache_config_info{kv_cache_size_tokens="99999999"} 1.0\nvllm:kv_cache_usage_perc 0.1\n'
        pipe.send(server.port)
        pipe.recv()


async def watch_lag(lags: list[float]) -> None:
    """Note how late a short sleep ends, in milliseconds."""
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(SLEEPER_S)
        lags.append(1000 * (time.perf_counter() - begin - SLEEPER_S))


async def drive(world: RunWorld, spec: WorkerSpec, load: Load) -> tuple[float, float, list[float]]:
    """Rollouts per second in the middle half, CPU seconds of each, and the loop's lags meanwhile."""
    marks: list[tuple[float, float, int]] = []
    lags: list[float] = []
    worker = asyncio.ensure_future(work(spec, world.attempt, world.process_id))
    watch = asyncio.ensure_future(watch_lag(lags))
    for share in (0.25, 0.75):
        while (done := await asyncio.to_thread(_num_done, world)) < share * load.num_rollouts:
            assert not worker.done(), worker.exception()
            await asyncio.sleep(0.2)
        marks.append((time.perf_counter(), time.process_time(), done))
        if share == 0.25:
            lags.clear()
    kept = list(lags)
    watch.cancel()
    worker.cancel()
    await asyncio.gather(worker, watch, return_exceptions=True)
    (begin, cpu_begin, before), (end, cpu_end, after) = marks
    return (after - before) / (end - begin), (cpu_end - cpu_begin) / (after - before), kept


def _num_done(world: RunWorld) -> int:
    with world.store.read() as connection:
        by_status = accounting.counts(connection, schema.groups, "run")
    return NUM_GENERATIONS * sum(number for status, number in by_status.items() if status != "claimed")


def measure(load: Load) -> dict[str, float]:
    """The numbers of one run."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(load, theirs), daemon=True)
    process.start()
    server = ScriptedServer()
    server.port = ours.recv()
    server.url = f"http://127.0.0.1:{server.port}"
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "num_generations": NUM_GENERATIONS,
            "max_concurrent_rollouts": load.num_concurrent,
            "max_completion_length": 256,
            "score_centering": False,
        }
        world = RunWorld(Path(folder), server, settings)
        _allow_everything(world)
        spec = world.spec(rows(load.num_rollouts // NUM_GENERATIONS * 2), [by_length])
        spec = replace(spec, tokenizer=TOKENIZER, eos_token_ids=(0,), tools=(wait,))
        rate, cpu_s, lags = uvloop.run(drive(world, spec, load))
        world.store.close()
    ours.send(None)
    process.join(10)
    ideal = load.num_concurrent / load.rollout_s
    return {
        "throughput_fraction": rate / ideal,
        "lag_p99_ms": float(np.percentile(lags, 99)),
        "lag_p50_ms": float(np.percentile(lags, 50)),
        "cpu_ms_per_rollout": 1000 * cpu_s,
        "rollouts_per_s": rate,
        "ideal_rollouts_per_s": ideal,
    }


def _allow_everything(world: RunWorld) -> None:
    from agrpo.store import runs

    runs.set_allowance(world.attempt, 1, 10**12)


def main(show: Callable[[str], None] = print) -> None:
    """Read the command line, measure, say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--concurrent", type=int, default=512)
    parser.add_argument("--rollouts", type=int, default=12288)
    parser.add_argument("--tool-s", type=float, default=1.0)
    parser.add_argument("--turn-s", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(Load(options.concurrent, options.rollouts, options.tool_s, options.turn_s))
    show(json.dumps(found) if options.json else "\n".join(f"{name:22} {value:.3f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
