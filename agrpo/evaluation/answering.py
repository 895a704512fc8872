"""Answers and scores held-out prompts through whatever serves the policy."""

import asyncio
import contextlib
import dataclasses
from typing import Protocol

import numpy as np

from agrpo.advantages import total_rewards
from agrpo.evaluation.tasks import held_out_rows
from agrpo.inference.client import SamplingParams
from agrpo.records import TurnRecord
from agrpo.rollout.groups import GroupFailed, GroupGenerator, root_error
from agrpo.rollout.members import GeneratedGroup
from agrpo.rollout.prompts import Prompt, open_prompts
from agrpo.rollout.scoring import Scorer, Unscored
from agrpo.rollout.slots import Slots
from agrpo.rollout.worker import WorkerSpec, environments_of, spec_of_run
from agrpo.runfile import RunFile
from agrpo.store import evaluations
from agrpo.store.evaluations import ScoredAnswer, Writer
from agrpo.tools.isolated import IsolatedTools

NUM_AT_ONCE = 32
"""Prompts in flight."""
SEED_NAMESPACE = "evaluation"
"""Seeds depend on prompt and sample alone: two policies meet the same ones."""


class Servers(Protocol):
    """What a rollout loop asks of servers."""

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> TurnRecord:
        """Sample one turn."""

    async def max_model_len(self) -> int:
        """Longest prompt plus completion."""


def spec_of_evaluation(store_url: str, run: RunFile, token: int) -> WorkerSpec:
    """A run's worker, turned to its held-out prompts: sampling as in training, but for what the evaluation says."""
    spec = spec_of_run(store_url, run.name, token)
    spec.config.num_generations = run.evaluation.num_samples
    spec.config.temperature = run.evaluation.temperature or spec.config.temperature
    return dataclasses.replace(spec, dataset=held_out_rows(run))


async def answer_all(spec: WorkerSpec, servers: Servers, writer: Writer, evaluation_id: int) -> None:
    """Answer every prompt `num_generations` times and store what the rewards say.

    What nothing scored is left out: a refused prompt, and an answer for which every source returned None. Raises the
    one error that says most, so that an outage of the store is known as one.
    """
    loop = spec.loop_cls(spec.config, spec.model_name, spec.tokenizer, spec.eos_token_ids, servers)
    scorer = Scorer(spec.reward_funcs, spec.config.reward_timeout_s)
    environments = environments_of(spec, loop.threads)
    tools = IsolatedTools(spec.tools, spec.config.tool_timeout_s)
    slots = Slots(spec.config.max_concurrent_rollouts)
    generator = GroupGenerator(loop, SEED_NAMESPACE, slots, tools.tools, environments)
    prompts = open_prompts(spec.dataset, 1.0, needs_prompt=spec.environment_factory is None)
    gate = asyncio.Semaphore(NUM_AT_ONCE)

    async def answer(prompt: Prompt) -> None:
        async with gate:
            try:
                generated = await generator.generate(prompt, prompt.prompt_index, lambda: 0)
                rewards = await scorer.score(generated.group)
            except (GroupFailed, Unscored):
                return
            answers = scored_answers(generated, rewards)
            if answers:
                evaluations.add(writer, evaluation_id, answers)

    try:
        async with contextlib.AsyncExitStack() as open_parts:  # what one raises while it is closed skips no other
            if environments is not None:
                open_parts.push_async_callback(environments.close)
            open_parts.callback(tools.close)
            open_parts.callback(scorer.close)
            open_parts.push_async_callback(loop.close)
            await loop.setup()
            async with asyncio.TaskGroup() as tasks:
                for index in range(len(spec.dataset)):
                    tasks.create_task(answer(prompts.prompt(index)))
    except BaseExceptionGroup as errors:
        raise root_error(errors) from errors


def scored_answers(generated: GeneratedGroup, rewards: dict[str, list[float | None]]) -> list[ScoredAnswer]:
    """The answers of a group that some source scored, each with the sum of its rewards."""
    completions = generated.group.completions
    totals = total_rewards(list(rewards.values()), len(completions))
    return [
        ScoredAnswer(
            row_index=generated.prompt.row_index,
            sample=sample,
            completion=completion,
            rewards={name: values[sample] for name, values in rewards.items()},
            reward=float(total),
        )
        for sample, (completion, total) in enumerate(zip(completions, totals, strict=True))
        if not np.isnan(total)
    ]
