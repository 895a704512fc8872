"""The accounting against a model of it: any order of claims, commits, drops, steps and checkpoints."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agrpo.store import checkpoints, groups, leases, runs, samples, steps
from tests.worlds.small_groups import (
    DEAD,
    PROMPT,
    group,
    name_checkpoint,
    scored,
    start_run,
    start_worker,
    turn,
    two_samples,
)

ACTIONS = ("claim", "commit", "commit dropped", "skip", "drop", "step", "checkpoint", "die")


class Model:
    """What the store should say, and the calls that bring it there."""

    def __init__(self, store, run_id):
        self.store, self.attempt = store, start_run(store, run_id, max_attempts=100)
        self.worker = start_worker(self.attempt)
        self.claimed: dict[int, groups.Claim] = {}
        self.free: set[int] = set()
        self.fate: dict[int, Counter] = {}
        self.step = 0

    def act(self, action: str, choice: int) -> None:
        getattr(self, action.replace(" ", "_"))(choice)
        self.check()

    def claim(self, choice):
        found = groups.claim(self.attempt, self.worker, 1 + choice % 3)
        expected = sorted(self.free)[: 1 + choice % 3]
        assert [claim.prompt_index for claim in found][: len(expected)] == expected
        self.free -= set(expected)
        self.claimed |= {claim.prompt_index: claim for claim in found}

    def commit(self, choice):
        rollouts = [two_samples(), scored([turn(PROMPT, [6])])][choice % 2 :]
        self._finish(choice, lambda claim: groups.commit(self.attempt, group(claim, *rollouts)))

    def commit_dropped(self, choice):
        self._finish(choice, lambda claim: groups.commit(self.attempt, group(claim, reason="no_signal")))

    def skip(self, choice):
        self._finish(choice, lambda claim: groups.skip(self.attempt, claim.group_id, "filtered"))

    def drop(self, choice):
        waiting = [one for one in samples.pending(self.store, self.run_id) if not one.rollout_started]
        if waiting:
            samples.drop(self.attempt, [waiting[choice % len(waiting)].sample_id], "stale")

    def step_(self, count):
        chosen = samples.pending(self.store, self.run_id)[: 1 + count % 4]
        self.step += 1
        rows = [steps.StepRow(0, 0, position, one.sample_id) for position, one in enumerate(chosen)]
        steps.record(self.attempt, self.step, rows, 0)
        steps.finish(self.attempt, self.step, "digest", {})

    def checkpoint(self, choice):
        index = name_checkpoint(self.attempt, self.step, "folder", "digest")
        assert checkpoints.cursor(self.store, self.run_id).trained_prompt_index == index == self.expected_index()

    def die(self, choice):
        self.attempt = leases.acquire(self.store, self.run_id, DEAD)
        self.worker = start_worker(self.attempt)
        self.free |= set(self.claimed)
        self.claimed = {}

    @property
    def run_id(self):
        return self.attempt.run_id

    def expected_index(self) -> int:
        pending = {one.prompt_index for one in samples.pending(self.store, self.run_id)}
        known = len(groups.groups(self.store, self.run_id))
        return min(pending | set(self.claimed) | self.free | {known})

    def check(self) -> None:
        assert runs.trained_prompt_index(self.store, self.run_id) == self.expected_index()
        pending = Counter(one.group_id for one in samples.pending(self.store, self.run_id))
        rows = groups.groups(self.store, self.run_id)
        assert [row.prompt_index for row in rows] == list(range(len(rows)))
        for row in rows:
            assert (row.status == "claimed") == (row.prompt_index in self.claimed or row.prompt_index in self.free)
            assert (row.status == "ready") == (pending[row.id] > 0)
        members = [row.sample_id for k in range(1, self.step + 1) for row in steps.rows(self.store, self.run_id, k)]
        assert len(members) == len(set(members)) == runs.summary(self.store, self.run_id).samples.get("trained", 0)

    def _finish(self, choice, finish):
        if self.claimed:
            finish(self.claimed.pop(self._pick(choice)))

    def _pick(self, choice):
        return sorted(self.claimed)[choice % len(self.claimed)]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_any_history_keeps_the_books(store):
    count = iter(range(10_000))

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), max_size=25))
    def history(actions):
        model = Model(store, f"run-{next(count)}")
        for action, choice in [("claim", 2), ("commit", 0), *actions]:
            model.act("step_" if action == "step" else action, choice)

    history()
