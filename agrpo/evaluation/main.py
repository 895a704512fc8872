"""Answers and scores held-out prompts: `python -m agrpo.evaluation.main --store URL --run RUN --evaluation ID ...`."""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence

from agrpo import runfile
from agrpo.environments.pool import EnvironmentPool, TimeLimits
from agrpo.evaluation.server import FixedServer
from agrpo.evaluation.tasks import held_out_rows
from agrpo.launch import exits
from agrpo.rollout.groups import GroupGenerator
from agrpo.rollout.members import GeneratedGroup
from agrpo.rollout.prompts import Prompt, open_prompts
from agrpo.rollout.scoring import Scorer
from agrpo.rollout.slots import Slots
from agrpo.rollout.threads import Threads
from agrpo.rollout.worker import WorkerSpec, spec_of_run
from agrpo.store import Store, evaluations, runs
from agrpo.store.evaluations import ScoredAnswer

NUM_AT_ONCE = 32
"""Prompts in flight."""
SEED_NAMESPACE = "evaluation"
"""Seeds depend on prompt and sample alone: two policies meet the same ones."""


async def evaluate(spec: WorkerSpec, url: str, evaluation_id: int) -> None:
    """Answer every held-out prompt `num_generations` times and store what the rewards say."""
    store = Store.open(spec.store_url, create=False)
    server = FixedServer(url, spec.config.vllm_server_timeout)
    loop = spec.loop_cls(spec.config, spec.model_name, spec.tokenizer, spec.eos_token_ids, server)
    scorer = Scorer(spec.reward_funcs, spec.config.reward_timeout_s)
    environments = _environments(spec, loop.threads)
    slots = Slots(spec.config.max_concurrent_rollouts)
    generator = GroupGenerator(loop, SEED_NAMESPACE, slots, spec.tools, environments)
    prompts = open_prompts(spec.dataset, 1.0, needs_prompt=spec.environment_factory is None)
    gate = asyncio.Semaphore(NUM_AT_ONCE)

    async def answer(prompt: Prompt) -> None:
        async with gate:
            generated = await generator.generate(prompt, prompt.prompt_index, lambda: 0)
            rewards = await scorer.score(generated.group)
            evaluations.add(store, evaluation_id, _answers(generated, rewards))

    try:
        await loop.setup()
        async with asyncio.TaskGroup() as tasks:
            for index in range(prompts.stop_index(1) or 0):
                tasks.create_task(answer(prompts.prompt(index)))
    finally:
        await loop.close()
        scorer.close()
        if environments is not None:
            environments.close()
        await server.close()
        store.close()


def _answers(generated: GeneratedGroup, rewards: dict[str, list[float | None]]) -> list[ScoredAnswer]:
    found = []
    for sample, completion in enumerate(generated.group.completions):
        by_source = {name: values[sample] for name, values in rewards.items()}
        total = sum(value for value in by_source.values() if value is not None)
        found.append(ScoredAnswer(generated.prompt.row_index, sample, completion, by_source, total))
    return found


def _environments(spec: WorkerSpec, threads: Threads) -> EnvironmentPool | None:
    if spec.environment_factory is None:
        return None
    config = spec.config
    limits = TimeLimits(config.tool_timeout_s, config.reset_timeout_s, config.get_reward_timeout_s)
    return EnvironmentPool(spec.environment_factory, threads, limits, spec.isolate_environments)


def main(arguments: Sequence[str]) -> None:
    """Read the command line, then evaluate."""
    parser = argparse.ArgumentParser(prog="python -m agrpo.evaluation.main", description="Scores held-out prompts.")
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--evaluation", required=True, type=int, help="number of the evaluation")
    parser.add_argument("--url", required=True, help="address of the server that serves the weights")
    options = parser.parse_args(arguments)
    store = Store.open(options.store, create=False)
    run = runfile.parse(runs.get_run(store, options.run).config, f"run {options.run}")
    store.close()
    spec = spec_of_run(options.store, options.run, 0)
    # The same sampling as in training, but for what the evaluation says of itself.
    spec.config.num_generations = run.evaluation.num_samples
    spec.config.temperature = run.evaluation.temperature or spec.config.temperature
    spec = dataclasses.replace(spec, dataset=held_out_rows(run))
    asyncio.run(evaluate(spec, options.url, options.evaluation))


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
