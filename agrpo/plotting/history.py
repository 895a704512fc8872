"""What a plot shows of a run: its values by step, and where an attempt or a process began again."""

import bisect
from collections import Counter
from dataclasses import dataclass

from agrpo.store import Store, evaluations, events, metrics, runs
from agrpo.store.events import Event

_MARKED = {"restart", "attached"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A restart, at the last step that had been logged by then."""

    step: int
    says: str


@dataclass(frozen=True, slots=True)
class History:
    """One run, ready to be drawn."""

    run_id: str
    status: str
    series: list[tuple[int, dict[str, float]]]
    marks: list[Mark]


def read_history(store: Store, run_id: str) -> History:
    """The run as the store has it now. Raises BadInput when there is none of that name."""
    run = runs.get_run(store, run_id)
    return History(run_id, run.status, _series(store, run_id), read_marks(store, run_id))


def read_marks(store: Store, run_id: str) -> list[Mark]:
    """Every restart so far."""
    logged = metrics.logged_at(store, run_id)
    happened = [event for event in events.events(store, run_id) if event.kind in _MARKED]
    return [Mark(_step(logged, event), event.message) for event in happened if not _is_first_attempt(event)]


def _series(store: Store, run_id: str) -> list[tuple[int, dict[str, float]]]:
    """Logged values, and the rewards of evaluations at their steps, whether anything else was logged there or not.

    Of several sets of prompts the one that was asked most often makes the line.
    """
    values = dict(metrics.series(store, run_id))
    found = evaluations.of_run(store, run_id)
    [(tasks, _)] = Counter(one.tasks for one in found).most_common(1) or [("", 0)]
    for one in found:
        if one.values and one.tasks == tasks:
            reward = float(one.values["reward"]["value"])
            values[one.step] = values.get(one.step, {}) | {"evaluation/reward": reward}
    return sorted(values.items())


def _is_first_attempt(event: Event) -> bool:
    return event.kind == "attached" and event.token == 1


def _step(logged: list[tuple[int, float]], event: Event) -> int:
    position = bisect.bisect_right([at for _, at in logged], event.at)
    return logged[position - 1][0] if position else 0
