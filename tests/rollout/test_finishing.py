"""A group with its rewards becomes what the store keeps."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from agrpo.records import GroupCommit, RolloutGroup
from agrpo.rollout.finishing import finished
from agrpo.rollout.groups import GroupGenerator
from agrpo.rollout.members import GeneratedGroup
from agrpo.rollout.slots import Slots
from agrpo.rollout.stats import Times
from tests.rollout.test_groups import EOS, Scripted, generate, prompt, rollout, scripted


def commit(loop: Scripted, rewards: dict[str, list[float | None]] | None) -> GroupCommit:
    return finished(generate(loop), loop, rewards, Times((1.0, 3.0), 0.25, 0.5))


def test_a_scored_group_carries_advantages_into_its_samples() -> None:
    group = commit(scripted(rollout(10, EOS), rollout(10, 11)), {"a": [1.0, None], "b": [1.0, 1.0]})
    assert group.drop_reason is None
    assert [entry.reward for entry in group.rollouts] == [2.0, 1.0]
    assert [entry.advantage for entry in group.rollouts] == pytest.approx([1.0, -1.0], abs=1e-6)
    assert [entry.terminated for entry in group.rollouts] == [True, False]
    assert group.rollouts[1].rewards == {"a": None, "b": 1.0}
    (sample,) = group.rollouts[0].sequences
    assert (sample.advantage, sample.version, sample.group_id) == (group.rollouts[0].advantage, 7, 3)
    assert sample.rollout_id == group.rollouts[0].rollout.rollout_id
    assert (group.prompt, group.prompt_ids) == ([{"role": "user", "content": "0"}], [5, 6])
    assert group.stats["rollout/duration_s"] == 2.0 and group.stats["completions/clipped_ratio"] == 0.5


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [({"a": [0.7, 0.7]}, "no_signal"), ({"a": [1.0, None]}, "no_signal"), ({}, "no_reward"), (None, "unscored")],
)
def test_groups_that_teach_nothing_are_dropped(rewards: dict[str, list[float | None]] | None, reason: str) -> None:
    assert commit(scripted(rollout(10), rollout(11)), rewards).drop_reason == reason


class Judged(Scripted):
    """Looks at the rewards of every group and answers with advantages of its own."""

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        assert group.rewards is not None
        self.seen = group.rewards.tolist()
        return np.array([5.0, -3.0])


def test_the_drop_looks_at_rewards_and_not_at_overridden_advantages() -> None:
    loop = scripted(rollout(10), rollout(11), loop_cls=Judged)
    group = commit(loop, {"a": [1.0, 1.0]})
    assert isinstance(loop, Judged) and loop.seen == [1.0, 1.0]
    assert group.drop_reason == "no_signal"
    assert [entry.advantage for entry in group.rollouts] == [5.0, -3.0]


def test_tools_that_a_loop_brings_itself_are_measured_from_the_first_call_on() -> None:
    calling = replace(rollout(10), tool_call_count=3, tool_failure_count=1)
    loop = scripted(rollout(10), rollout(11), calling, rollout(11), rollout(10), rollout(11))
    generator = GroupGenerator(loop, "run", Slots(8))

    async def run() -> list[GeneratedGroup]:
        return [await generator.generate(prompt(), 3, lambda: 7) for _ in range(3)]

    none, some, later = [
        finished(found, loop, {"a": [0.0, 1.0]}, Times(found.seconds, 0.0, 0.0)).stats for found in asyncio.run(run())
    ]
    assert "tools/call_frequency" not in none
    assert some["tools/call_frequency"] == 1.5 and some["tools/failure_frequency"] == pytest.approx(1 / 3)
    assert later["tools/call_frequency"] == 0
