"""The curriculum of the examples: solved prompts are not sampled again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import BadInput
from agrpo.rollout.worker import WorkerSpec
from agrpo.store import groups
from examples.curriculum import CurriculumConfig, CurriculumTrainer
from tests.rollout.run_world import RunWorld, finished, rows
from tests.worlds.scripted_server import ScriptedServer


def even_is_easy(completion_ids: list[list[int]], number: list[int], **columns: Any) -> list[float]:
    """Even numbers are always solved, odd ones half of the time."""
    return [float(n % 2 == 0 or i % 2) for i, n in enumerate(number)]


def easy(completions: list[Any], **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def curriculum(world: RunWorld, reward: Any, **settings: Any) -> WorkerSpec:
    config = CurriculumConfig(
        output_dir=str(world.folder), use_cpu=True, num_generations=2, max_completion_length=8, **settings
    )
    return replace(world.spec(rows(4), [reward], CurriculumTrainer.loop_cls), config=config)


def fates(world: RunWorld) -> list[tuple[int, str | None]]:
    return [(group.prompt_index, group.drop_reason) for group in groups.groups(world.store, "run")]


def test_solved_prompts_are_left_out_of_later_passes(tmp_path: Path, server: ScriptedServer) -> None:
    world = RunWorld(tmp_path, server)
    # One rollout at a time, so that a pass is scored before the next one begins.
    spec = curriculum(world, even_is_easy, num_train_epochs=3, max_concurrent_rollouts=1)
    world.run(spec, lambda: finished(world, 12))
    by_index = dict(fates(world))
    assert [by_index[i] for i in (0, 1, 2, 3)] == ["no_signal", None, "no_signal", None]
    assert [by_index[i] for i in (8, 9, 10, 11)] == ["filtered", None, "filtered", None]


def test_the_threshold_is_the_configs(tmp_path: Path, server: ScriptedServer) -> None:
    world = RunWorld(tmp_path, server)
    spec = curriculum(world, even_is_easy, num_train_epochs=3, max_concurrent_rollouts=1, solved_at=2.0)
    world.run(spec, lambda: finished(world, 12))
    assert "filtered" not in dict(fates(world)).values()


def test_a_pass_in_which_everything_is_solved_says_so(tmp_path: Path, server: ScriptedServer) -> None:
    world = RunWorld(tmp_path, server)
    with pytest.raises(BadInput, match=r"no prompt of epoch \d can be used \(4 filtered\)"):
        world.run(curriculum(world, easy, max_steps=100, max_concurrent_rollouts=1), lambda: False)
