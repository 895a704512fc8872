"""Where a run stands, read from the store: what the live display and Prefect's artifacts tell."""

import re
import time
from dataclasses import dataclass

from agrpo.store import Store, events, metrics, processes, runs
from agrpo.store.processes import ProcessRecord
from agrpo.store.runs import Run

_RECENT_S = 120.0
_TOGETHER_S = 5.0
_NUM_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run."""

    run_id: str
    status: str
    phase: str
    """What the launcher is doing, such as "starting server 0" or "training"; the status when it does nothing."""
    waits_for: dict[str, str]
    """What each running process's loop said it is doing, by "kind index"; only recent words."""
    processes: dict[str, str]
    """State by "kind index": "pid 123", or why it ended."""
    step: int
    num_steps: int | None
    """Steps the run will make; None when its end is a number of epochs."""
    wall_s: float
    history: list[tuple[int, dict[str, float]]]
    """Logged values by step, in order: the last ones, as looks at a long run must stay cheap."""
    done: float | None = None
    """Share of the run that is made, 0 to 1; None while nobody knows how many prompts there are."""

    @property
    def last(self) -> dict[str, float]:
        """The newest logged values."""
        return self.history[-1][1] if self.history else {}


def read_progress(store: Store, run_id: str) -> Progress:
    """The run as the store has it now."""
    run = runs.get_run(store, run_id)
    phases = [event.message for event in events.events(store, run_id) if event.kind == "phase"]
    own = [process for process in processes.all(store, run_id) if process.token == run.token]
    running = {f"{process.kind} {process.index}" for process in own if process.state == "running"}
    max_steps = int(run.config["trainer"]["max_steps"])
    return Progress(
        run_id=run_id,
        status=run.status,
        phase=phases[-1] if phases and run.status == "running" else run.status,
        waits_for={name: words for name, words in _recent_words(store, run_id).items() if name in running},
        processes={f"{process.kind} {process.index}": _state(process) for process in own},
        step=run.step,
        num_steps=max_steps if max_steps > 0 else None,
        wall_s=run.wall_s,
        history=metrics.series(store, run_id, last=_NUM_SHOWN),
        done=run.step / max_steps if max_steps > 0 else _share_of_epochs(store, run),
    )


def _share_of_epochs(store: Store, run: Run) -> float | None:
    """Prompts that are done with among those of all epochs; the fingerprint of a table begins with its size."""
    rows = re.match(r"(\d+) rows", run.data_fingerprint or "")
    if rows is None:
        return None
    num_prompts = int(rows[1]) * float(run.config["trainer"]["num_train_epochs"])
    return min(1.0, runs.trained_prompt_index(store, run.run_id) / num_prompts)


def _state(process: ProcessRecord) -> str:
    return f"pid {process.pid}" if process.state == "running" else str(process.reason)


def _recent_words(store: Store, run_id: str) -> dict[str, str]:
    """What the loops of each process said last, those that spoke together with the newest one."""
    by_process: dict[str, list[processes.Heartbeat]] = {}
    for beat in processes.heartbeats(store, run_id):
        if beat.detail and beat.at >= time.time() - _RECENT_S:
            by_process.setdefault(f"{beat.kind} {beat.index}", []).append(beat)
    words = {}
    for name, beats in by_process.items():
        newest = max(beat.at for beat in beats)
        together = [beat for beat in beats if beat.at > newest - _TOGETHER_S]
        words[name] = "; ".join(f"{beat.loop}: {beat.detail}" for beat in together)
    return words
