"""Section 8's table, row by row: numbers in, words out."""

import pytest

from agrpo.diagnoses import Told, Values, diagnose

TOLD = Told(max_staleness=4, num_generations=8, max_concurrent_rollouts=512, reward_range=(0.0, 1.0))


def says(topic: str, history: list[Values], told: Told = TOLD) -> tuple[str, str]:
    """Level and words on one topic."""
    found = {diagnosis.topic: diagnosis for diagnosis in diagnose(history, told)}
    return (found[topic].level, found[topic].says) if topic in found else ("", "")


@pytest.mark.parametrize(
    ("wait_s", "backpressure_s", "level", "words"),
    [
        (5.0, 0.0, "look", "generation is the bottleneck"),
        (0.0, 5.0, "fine", "training is the bottleneck"),
        (5.0, 5.0, "look", "raise trainer.max_staleness above 4"),
        (0.1, 0.1, "fine", "balanced"),
        (1.0, 1.0, "fine", "neither side waits long"),
    ],
)
def test_which_side_is_the_bottleneck(wait_s: float, backpressure_s: float, level: str, words: str) -> None:
    row = {"perf/step_s": 10.0, "perf/rollout_wait_s": wait_s, "rollout/backpressure_s": backpressure_s}
    found = says("bottleneck", [row] * 3)
    assert found[0] == level
    assert words in found[1]


@pytest.mark.parametrize(
    ("same", "dropped", "words"),
    [
        (0.1, 0.5, "healthy"),
        (0.3, 0.5, "teach nothing"),
        (0.8, 0.95, "solved"),
        (0.8, 0.05, "too hard"),
        (0.8, 0.5, "read them: agrpo rollouts RUN --status dropped"),
    ],
)
def test_whether_it_still_learns(same: float, dropped: float, words: str) -> None:
    row = {"frac_reward_zero_std": same, "reward_dropped": dropped, "reward": dropped}
    assert words in says("learning", [row] * 4)[1]


def test_a_regression_is_told_from_a_solved_task() -> None:
    falling = [
        {"frac_reward_zero_std": 0.4 + 0.05 * i, "reward": 0.9 - 0.08 * i, "reward_dropped": 0.9 - 0.1 * i}
        for i in range(8)
    ]
    assert says("learning", falling) == (
        "act",
        "it gets worse: more groups score the same while rewards fall; look at duplicates and entropy below",
    )


def test_cut_completions_are_named_where_everything_fails() -> None:
    row = {"frac_reward_zero_std": 0.9, "reward_dropped": 0.0, "reward": 0.0, "completions/clipped_ratio": 0.6}
    assert "the 60% of completions that are cut" in says("learning", [row] * 4)[1]
    assert "raise trainer.max_completion_length" in says("length", [row] * 4)[1]


def test_copies_are_a_broken_sampler_or_a_collapse_or_nothing() -> None:
    assert "sampling is not random" in says("variety", [{"completions/duplicate_frac": 0.875}] * 4)[1]
    collapse = [{"completions/duplicate_frac": 0.05 * i, "entropy": 1.0 - 0.1 * i} for i in range(8)]
    assert "collapsing" in says("variety", collapse)[1]
    assert says("variety", [{"completions/duplicate_frac": 0.02, "entropy": 1.0}] * 8)[0] == "fine"


@pytest.mark.parametrize(
    ("running", "cap", "kv", "words"),
    [
        (500.0, 512.0, 0.1, "raise max_concurrent_rollouts"),
        (500.0, 512.0, 0.9, "all 512 rollout slots are in use"),
        (99.0, 100.0, 0.7, "server load limits the rollouts in flight to 100 of 512"),
    ],
)
def test_what_limits_the_rollouts_in_flight(running: float, cap: float, kv: float, words: str) -> None:
    waits = {"perf/step_s": 10.0, "perf/rollout_wait_s": 5.0}
    load = {"rollout/concurrency": running, "rollout/concurrency_cap": cap, "rollout/vllm_kv_cache_usage_frac": kv}
    assert words in says("concurrency", [waits | load])[1]


def test_nothing_is_said_before_the_first_step() -> None:
    assert diagnose([], TOLD) == []
