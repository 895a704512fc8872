import asyncio
import dataclasses
import functools
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agrpo.errors import RewardError
from agrpo.records import RolloutGroup
from agrpo.rewards import accuracy_reward, isolated
from agrpo.rollout import retries, threads
from agrpo.rollout.groups import root_error
from agrpo.rollout.scoring import Scorer, Unscored, check_rewards, source_names
from agrpo.rollout.threads import TooManyHung


def group(num_rollouts: int = 2, rewards: list[float | None] | None = None, **columns: Any) -> RolloutGroup:
    return RolloutGroup(
        prompts=[[{"role": "user", "content": "2+2?"}]] * num_rollouts,
        reward_kwargs={name: [value] * num_rollouts for name, value in columns.items()},
        completions=[[{"role": "assistant", "content": f"It is {3 + i}."}] for i in range(num_rollouts)],
        completions_ids=[[i] for i in range(num_rollouts)],
        completions_sequences=[[]] * num_rollouts,
        tool_call_counts=[0] * num_rollouts,
        tool_failure_counts=[0] * num_rollouts,
        model_version=0,
        group_id=0,
        row_index=7,
        env_rewards=[None] * num_rollouts,
        rollout_rewards=rewards or [None] * num_rollouts,
    )


def score(
    functions: Sequence[Callable[..., Any]], *groups: RolloutGroup, timeout_s: float = 20.0
) -> list[dict[str, list[float | None]]]:
    """Score groups at the same time."""

    async def run() -> list[dict[str, list[float | None]]]:
        scorer = Scorer(functions, timeout_s)
        try:
            return await asyncio.gather(*(scorer.score(given) for given in groups))
        finally:
            scorer.close()

    try:
        return asyncio.run(run())
    except BaseExceptionGroup as errors:
        raise root_error(errors) from None


def by_id(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(ids[0]) for ids in completion_ids]


async def by_task(completions: list[Any], task: list[str], **columns: Any) -> list[float | None]:
    return [1.0 if name == "math" else None for name in task]


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    async def __call__(self, completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [self.factor * len(ids) for ids in completion_ids]


@isolated
def process_id(completions: list[Any], **columns: Any) -> list[float]:
    return [float(os.getpid())] * len(completions)


@isolated
def uses_signals(completions: list[Any], **columns: Any) -> list[float]:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return [1.0] * len(completions)


@isolated
def never_returns(completions: list[Any], task: list[str], **columns: Any) -> list[float]:
    while task[0] == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return [1.0] * len(completions)


@isolated
def isolated_bug(completions: list[Any], **columns: Any) -> list[float]:
    raise KeyError("missing column")


def test_functions_of_every_kind_are_called_with_the_documented_keywords() -> None:
    functions = [by_id, by_task, Scaled(3.0), functools.partial(by_id)]
    (rewards,) = score(functions, group(task="math"))
    assert rewards == {"by_id": [0.0, 1.0], "by_task": [1.0, 1.0], "Scaled": [3.0, 3.0], "by_id_2": [0.0, 1.0]}
    (rewards,) = score([by_task], group(task="code"))
    assert rewards == {"by_task": [None, None]}


def test_what_a_function_does_to_its_row_is_its_own() -> None:
    def counts(board: list[list[str]], prompts: list[list[dict[str, str]]], **columns: Any) -> list[float]:
        found = float(len(board[0]) + len(prompts[0][0]))
        board[0].clear()
        prompts[0][0].clear()
        return [found, found]

    scored = group(board=["x"])
    assert score([counts, counts], scored, scored) == [{"counts": [3.0, 3.0], "counts_2": [3.0, 3.0]}] * 2


class OnlyPickled:
    """Stands for a large column."""

    def __deepcopy__(self, memo: Any) -> None:
        raise AssertionError("copied for nothing")


def test_a_row_that_goes_to_a_process_is_not_copied_before() -> None:
    (rewards,) = score([process_id], group(picture=OnlyPickled()))
    assert rewards["process_id"][0] != os.getpid()


def test_a_reward_of_the_rollout_itself_is_a_source() -> None:
    (rewards,) = score([by_id], group(rewards=[0.5, None]))
    assert rewards == {"by_id": [0.0, 1.0], "rollout": [0.5, None]}
    assert source_names([by_id, by_id, accuracy_reward]) == ["by_id", "by_id_2", "accuracy_reward"]


def test_sources_of_one_name_are_numbered() -> None:
    def rollout(completions: list[Any], **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    class by_id_2:
        """An environment that is called like the second function."""

    given = dataclasses.replace(group(rewards=[0.5, None]), env_rewards=[(by_id_2, 0.25), None])
    (rewards,) = score([by_id, rollout, by_id], given)
    assert rewards == {
        "by_id": [0.0, 1.0],
        "rollout": [1.0, 1.0],
        "by_id_2": [0.0, 1.0],
        "by_id_2_2": [0.25, None],
        "rollout_2": [0.5, None],
    }


def test_calls_of_all_functions_and_groups_overlap() -> None:
    """Every call waits for the last one: in sequence they would never end."""
    num_groups = 16
    sync, together = threading.Barrier(num_groups), []

    def waits(completions: list[Any], **columns: Any) -> list[float]:
        sync.wait(10)
        return [0.0] * len(completions)

    async def waits_too(completions: list[Any], **columns: Any) -> list[float]:
        together.append(1)
        while len(together) < num_groups:
            await asyncio.sleep(0.01)
        return [0.0] * len(completions)

    assert len(score([waits, waits_too], *[group()] * num_groups)) == num_groups


def test_isolated_functions_run_in_processes_where_signals_work() -> None:
    rewards = score([process_id, uses_signals, accuracy_reward], group(solution="4"), group(solution="3"))
    pids = {pid for found in rewards for pid in found["process_id"]}
    assert os.getpid() not in pids
    assert [found["accuracy_reward"] for found in rewards] == [[0.0, 1.0], [1.0, 0.0]]


def test_an_isolated_call_that_hangs_is_ended_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 13."""
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", ())
    monkeypatch.setattr(os, "cpu_count", lambda: 1)

    async def run() -> tuple[object, ...]:
        scorer = Scorer([never_returns], 5.0)
        await scorer.score(group(task="warm up"))
        try:
            calls = (scorer.score(group(task="hang")), scorer.score(group(task="fine")))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert len(multiprocessing.active_children()) == 1
            return tuple(outcomes)
        finally:
            scorer.close()

    hung, fine = asyncio.run(run())
    assert isinstance(hung, Unscored) and str(hung) == "never_returns"
    assert fine == {"never_returns": [1.0, 1.0]}


def test_a_bug_in_an_isolated_function_shows_its_own_traceback() -> None:
    with pytest.raises(RewardError, match=r"(?s)'isolated_bug' raised in its process:.*missing column") as raised:
        score([isolated_bug], group())
    assert "for row 7" in raised.value.__notes__[0]


def test_a_thread_that_hangs_costs_only_its_group_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", ())

    def hangs(completions: list[Any], **columns: Any) -> list[float]:
        time.sleep(3600)
        return [0.0] * len(completions)

    with pytest.raises(Unscored):
        score([hangs], group(), timeout_s=0.1)
    monkeypatch.setattr(threads, "MAX_HUNG", 1)
    with pytest.raises(TooManyHung, match=r'hangs \(limit 0\.1 s\): .* set isolation = "process"'):
        score([hangs], group(), timeout_s=0.1)


def test_an_outage_is_retried_and_then_leaves_the_group_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 6."""
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0.01, 0.01))
    calls = []

    async def away(completions: list[Any], until: list[int], **columns: Any) -> list[float]:
        calls.append(1)
        if len(calls) < until[0]:
            raise ConnectionResetError("the judge is away")
        return [1.0] * len(completions)

    assert score([away], group(until=3)) == [{"away": [1.0, 1.0]}]
    calls.clear()
    with pytest.raises(Unscored, match="away"):
        score([away], group(until=4))
    assert len(calls) == 3


def test_a_call_that_hangs_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every further try would take its whole time limit and leave another thread behind."""
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0.0,) * 4)
    calls = []

    async def hangs(completions: list[Any], **columns: Any) -> list[float]:
        calls.append(1)
        await asyncio.Event().wait()
        return []

    with pytest.raises(Unscored, match="hangs"):
        score([hangs], group(), timeout_s=0.05)
    assert len(calls) == 2


def test_a_reward_that_raises_cancelled_error_is_a_bug() -> None:
    async def gives_up(completions: list[Any], **columns: Any) -> list[float]:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="gives_up raised CancelledError"):
        score([gives_up], group())


def test_rewards_of_environments_are_named_after_their_classes() -> None:
    scored = dataclasses.replace(group(), env_rewards=[(Scaled, 1.0), None])
    assert score([], scored) == [{"Scaled": [1.0, None]}]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0], "1 values for 2 completions"),
        ([1.0, math.nan], "nan for completion 1"),
        ([-math.inf, 1.0], "-inf for completion 0"),
        (0.5, "expected a list of 2 floats"),
        (["good", "bad"], "expected a list of 2 floats"),
    ],
)
def test_what_is_no_reward_is_refused_with_the_name_of_the_function(values: object, words: str) -> None:
    """Fault 22."""
    with pytest.raises(RewardError, match=f"reward function 'mine' returned.*{words}"):
        check_rewards("mine", values, 2)


def test_a_bug_keeps_its_exception_and_names_its_input() -> None:
    def buggy(completions: list[Any], **columns: Any) -> list[float]:
        raise IndexError("a bug")

    with pytest.raises(IndexError, match="a bug") as raised:
        score([buggy], group())
    assert "reward function 'buggy' for row 7: prompt [{'role': 'user'" in raised.value.__notes__[0]
