"""Evaluates while training goes on, through the run's own servers: `python -m agrpo.evaluation.during --store URL ...`.

Servers get new weights while it asks; an evaluation says which versions were published during it.
"""

import asyncio
import sys
from collections.abc import Sequence

from agrpo import runfile
from agrpo.evaluation.answering import answer_all, spec_of_evaluation
from agrpo.evaluation.due import due_step, name_in_training
from agrpo.evaluation.result import values_of
from agrpo.evaluation.tasks import fingerprint
from agrpo.launch import exits
from agrpo.launch.identity import read_identity
from agrpo.rollout.pool import ServerPool
from agrpo.rollout.worker import WorkerSpec
from agrpo.store import Attempt, Store, evaluations, policies, processes, runs, servers
from agrpo.store.servers import ServerRecord

LOOK_EVERY_S = 1.0


async def watch(spec: WorkerSpec, run: runfile.RunFile, attempt: Attempt) -> None:
    """Evaluate whenever `evaluation.steps` further steps are published, until this process is ended.

    Raises what ended the looking after the servers as well, in the middle of an evaluation: it would wait for them.
    """
    pool = ServerPool(spec.config.vllm_server_timeout, _leave_alone)
    loops = [
        asyncio.ensure_future(loop) for loop in (_follow(pool, attempt), _keep_evaluating(spec, run, pool, attempt))
    ]
    try:
        for ended in (await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED))[0]:
            ended.result()
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await pool.close()


async def _keep_evaluating(spec: WorkerSpec, run: runfile.RunFile, pool: ServerPool, attempt: Attempt) -> None:
    tasks = fingerprint(run)  # of what this process has imported, whatever the files say later
    while True:
        step = due_step(attempt.store, run)
        if step is None:
            processes.beat(attempt, "evaluator", 0, "evaluation", "waiting for steps")
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            processes.beat(attempt, "evaluator", 0, "evaluation", f"step {step}")
            await _evaluate(spec, run, pool, attempt, step, tasks)


async def _evaluate(
    spec: WorkerSpec, run: runfile.RunFile, pool: ServerPool, attempt: Attempt, step: int, tasks: str
) -> None:
    store = attempt.store
    began = policies.current_version(store, run.name)
    number = evaluations.begin(attempt, run.name, step, name_in_training(run.name, step), tasks)
    await answer_all(spec, pool, attempt, number)
    versions = {"first_version": began, "last_version": policies.current_version(store, run.name)}
    evaluations.finish(attempt, number, {**values_of(store, run, number), **versions})


async def _follow(pool: ServerPool, attempt: Attempt) -> None:
    """Keep the pool up to date. Raises LeaseLost when another attempt owns the run."""
    while True:
        processes.beat(attempt, "evaluator", 0, "servers")
        version = policies.current_version(attempt.store, attempt.run_id)
        await pool.update(servers.servers(attempt.store, attempt.run_id), version)
        await asyncio.sleep(LOOK_EVERY_S)


async def _leave_alone(server: ServerRecord) -> None:
    """Foreign weights are the worker's to report."""


def main(arguments: Sequence[str]) -> None:
    """Read the command line, then watch."""
    mine = read_identity("agrpo.evaluation.during", "Evaluates a training run.", arguments)
    attempt = Attempt(Store.open(mine.store_url, create=False), mine.run_id, mine.token)
    run = runfile.parse(runs.get_run(attempt.store, mine.run_id).config, f"run {mine.run_id}")
    asyncio.run(watch(spec_of_evaluation(mine.store_url, run, mine.token), run, attempt))


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
