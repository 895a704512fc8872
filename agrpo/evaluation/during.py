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
    evaluator = _Evaluator(spec, run, attempt)
    loops = [asyncio.ensure_future(loop) for loop in (evaluator.follow(), evaluator.keep_evaluating())]
    try:
        for ended in (await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED))[0]:
            ended.result()
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await evaluator.pool.close()


class _Evaluator:
    def __init__(self, spec: WorkerSpec, run: runfile.RunFile, attempt: Attempt) -> None:
        self.pool = ServerPool(spec.config.vllm_server_timeout, _leave_alone)
        self._spec = spec
        self._run = run
        self._attempt = attempt
        self._doing = "waiting for steps"

    async def follow(self) -> None:
        """Keep the pool up to date and say that we live. Raises LeaseLost when another attempt owns the run."""
        store, run_id = self._attempt.store, self._attempt.run_id
        while True:
            processes.beat(self._attempt, "evaluator", 0, "evaluation", self._doing)
            await self.pool.update(servers.servers(store, run_id), policies.current_version(store, run_id))
            await asyncio.sleep(LOOK_EVERY_S)

    async def keep_evaluating(self) -> None:
        """Evaluate what is due, for ever."""
        tasks = fingerprint(self._run)  # of what this process has imported, whatever the files say later
        while True:
            step = due_step(self._attempt.store, self._run)
            if step is None:
                self._doing = "waiting for steps"
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                self._doing = f"step {step}"
                await self._evaluate(step, tasks)

    async def _evaluate(self, step: int, tasks: str) -> None:
        attempt, store, name = self._attempt, self._attempt.store, self._run.name
        began = policies.current_version(store, name)
        number = evaluations.begin(attempt, name, step, name_in_training(name, step), tasks)
        await answer_all(self._spec, self.pool, attempt, number)
        versions = {"first_version": began, "last_version": policies.current_version(store, name)}
        evaluations.finish(attempt, number, {**values_of(store, self._run, number), **versions})


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
