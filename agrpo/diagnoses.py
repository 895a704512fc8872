"""What a run's numbers mean, in words: which side waits, and whether it still learns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Values = dict[str, float]
Level = Literal["fine", "look", "act"]

WINDOW = 20
"""Logged steps that a diagnosis looks at; trends compare their second half with the first."""
_HIGH_WAIT, _LOW_WAIT = 0.2, 0.05
"""Of a step's time."""
_MANY_ZERO_STD, _FEW_ZERO_STD = 0.5, 0.2
_TREND = 0.05
"""Of the range that a value can move in."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One question about a run, and its answer."""

    topic: str
    level: Level
    says: str
    """What it is, and what to do about it."""
    numbers: Values
    """The values it was read from."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the run was told, and the rewards it has met."""

    max_staleness: int
    num_generations: int
    max_concurrent_rollouts: int
    reward_range: tuple[float, float] | None


def diagnose(history: Sequence[Values], told: Told) -> list[Diagnosis]:
    """Diagnoses of the last logged steps, oldest first; empty before the first step."""
    recent = _Recent(history[-WINDOW:])
    if not history:
        return []
    found = [_bottleneck(recent, told), _concurrency(recent, told)]
    found += [_saturation(recent, told), _duplicates(recent, told), _clipping(recent)]
    return [diagnosis for diagnosis in found if diagnosis is not None]


class _Recent:
    """Means and trends of the last logged values."""

    def __init__(self, rows: Sequence[Values]) -> None:
        self._rows = rows

    def mean(self, name: str) -> float | None:
        """Mean over the rows that have the value; None where none has."""
        return _mean([row[name] for row in self._rows if name in row])

    def rise(self, name: str) -> float:
        """How much the second half lies above the first; 0 with too few rows."""
        values = [row[name] for row in self._rows if name in row]
        half = len(values) // 2
        early, late = _mean(values[:half]), _mean(values[half:])
        return 0.0 if half < 2 or early is None or late is None else late - early

    def known(self, *names: str) -> Values:
        """The means of those that are there."""
        means = {name: self.mean(name) for name in names}
        return {name: value for name, value in means.items() if value is not None}


def _bottleneck(recent: _Recent, told: Told) -> Diagnosis | None:
    names = ("perf/step_s", "perf/rollout_wait_s", "rollout/backpressure_s", "rollout/queue_size")
    numbers = recent.known(*names, "batch/samples_per_step")
    step_s = numbers.get("perf/step_s", 0.0)
    if step_s <= 0:
        return None
    trainer_waits = numbers.get("perf/rollout_wait_s", 0.0) / step_s
    worker_waits = numbers.get("rollout/backpressure_s", 0.0) / step_s
    share = f"the trainer waits {trainer_waits:.0%} of a step, a held worker {worker_waits:.0%}"
    level: Level = "look"
    if trainer_waits > _HIGH_WAIT and worker_waits > _HIGH_WAIT:
        says = f"both sides wait for each other: raise trainer.max_staleness above {told.max_staleness}"
    elif trainer_waits > _HIGH_WAIT:
        says = "generation is the bottleneck: more or faster servers, or shorter completions, speed it up"
    elif worker_waits > _HIGH_WAIT:
        level, says = "fine", "training is the bottleneck: servers wait for the trainer, which is the good way round"
    elif max(trainer_waits, worker_waits) < _LOW_WAIT:
        level, says = "fine", "generation and training are balanced"
    else:
        level, says = "fine", "neither side waits long"
    return Diagnosis("bottleneck", level, f"{says} ({share})", numbers)


def _concurrency(recent: _Recent, told: Told) -> Diagnosis | None:
    names = ("rollout/concurrency", "rollout/concurrency_cap", "rollout/vllm_kv_cache_usage_frac")
    numbers = recent.known(*names, "perf/rollout_wait_s", "perf/step_s")
    if "rollout/concurrency" not in numbers:
        return None
    running, maximum = numbers["rollout/concurrency"], told.max_concurrent_rollouts
    cap = numbers.get("rollout/concurrency_cap", float(maximum))
    waits = numbers.get("perf/rollout_wait_s", 0.0) > _HIGH_WAIT * numbers.get("perf/step_s", math.inf)
    if running >= 0.9 * maximum:
        full = numbers.get("rollout/vllm_kv_cache_usage_frac", 1.0) > 0.6
        if full or not waits:
            return Diagnosis("concurrency", "fine", f"all {maximum} rollout slots are in use", numbers)
        says = f"all {maximum} rollout slots are in use while the servers have room: raise max_concurrent_rollouts"
        return Diagnosis("concurrency", "look", says, numbers)
    if running >= 0.9 * cap:
        says = f"server load limits the rollouts in flight to {cap:.0f} of {maximum}: more servers would take more"
        return Diagnosis("concurrency", "look" if waits else "fine", says, numbers)
    return None


def _saturation(recent: _Recent, told: Told) -> Diagnosis | None:
    numbers = recent.known("frac_reward_zero_std", "reward_dropped", "reward", "completions/clipped_ratio", "entropy")
    same = numbers.get("frac_reward_zero_std")
    if same is None or told.reward_range is None:
        return None
    low, high = told.reward_range
    span = (high - low) or 1.0
    place = (numbers.get("reward_dropped", math.nan) - low) / span
    rises, falls = (sign * recent.rise("reward") / span > _TREND for sign in (1, -1))
    more = recent.rise("frac_reward_zero_std") > _TREND
    fewer_dropped_points = recent.rise("reward_dropped") / span < -_TREND
    if more and falls and fewer_dropped_points:
        says = "it gets worse: more groups score the same while rewards fall; look at duplicates and entropy below"
        return Diagnosis("learning", "act", says, numbers)
    if same <= _FEW_ZERO_STD:
        direction = "rises" if rises else "falls" if falls else "is level"
        says = f"healthy: {1 - same:.0%} of the groups tell good from bad, and the reward {direction}"
        return Diagnosis("learning", "fine", says, numbers)
    if same < _MANY_ZERO_STD and not more:
        return Diagnosis("learning", "fine", f"{same:.0%} of the groups score the same and teach nothing", numbers)
    return _saturated(same, place, numbers)


def _saturated(same: float, place: float, numbers: Values) -> Diagnosis:
    """Many groups without a difference: where their rewards lie says why."""
    start = f"{same:.0%} of the groups score the same"
    if place > 0.8:
        return Diagnosis("learning", "act", f"{start}, near the top: solved; stop, or give harder prompts", numbers)
    if place < 0.2:
        clipped = numbers.get("completions/clipped_ratio", 0.0)
        why = f"first look at the {clipped:.0%} of completions that are cut" if clipped > 0.2 else "easier prompts help"
        says = f"{start}, near the bottom: too hard, or the reward gives no partial credit; {why}"
        return Diagnosis("learning", "act", says, numbers)
    says = f"{start}, in the middle: some prompts are too easy, others too hard, or groups are stuck on one score"
    return Diagnosis("learning", "look", f"{says}; read them: agrpo rollouts RUN --status dropped", numbers)


def _duplicates(recent: _Recent, told: Told) -> Diagnosis | None:
    numbers = recent.known("completions/duplicate_frac", "entropy")
    copies = numbers.get("completions/duplicate_frac")
    if copies is None:
        return None
    all_same = (told.num_generations - 1) / told.num_generations
    if copies >= 0.95 * all_same:
        says = "nearly every completion repeats another of its group: sampling is not random (temperature? seeds?)"
        return Diagnosis("variety", "act", says, numbers)
    entropy = numbers.get("entropy", 0.0)
    if recent.rise("completions/duplicate_frac") > _TREND and recent.rise("entropy") < -_TREND * max(entropy, 0.1):
        says = f"collapsing: {copies:.0%} of completions are copies, more and more, while entropy falls"
        return Diagnosis("variety", "act", f"{says}; lower the learning rate or raise the temperature", numbers)
    return Diagnosis("variety", "fine", f"{copies:.0%} of completions repeat another of their group", numbers)


def _clipping(recent: _Recent) -> Diagnosis | None:
    numbers = recent.known("completions/clipped_ratio")
    if numbers.get("completions/clipped_ratio", 0.0) <= 0.5:
        return None
    cut = f"{numbers['completions/clipped_ratio']:.0%} of completions are cut"
    says = f"{cut}: raise trainer.max_completion_length, or ask for shorter answers"
    return Diagnosis("length", "look", says, numbers)


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else None
