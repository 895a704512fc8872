"""The live display of a training run: a panel on a terminal, a line a step elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agrpo.cli.numbers import duration, number
from agrpo.cli.progress import Progress, read_progress
from agrpo.errors import AgrpoError
from agrpo.store import Store, runs

_EVERY_S = 1.0
_BARS = " ▁▂▃▄▅▆▇█"


@contextmanager
def watching(store_url: str, run_id: str, console: Console) -> Iterator[None]:
    """Show the run while the block works. The display only reads, and its failure never harms the run."""
    ended = threading.Event()
    show = _panel if console.is_terminal else _lines
    thread = threading.Thread(target=show, args=(store_url, run_id, console, ended), name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5.0)


def _looks(store_url: str, run_id: str, ended: threading.Event) -> Iterator[Progress]:
    """A look every second, and a last one at the end; nothing while there is no such run yet."""
    store: Store | None = None
    last_look = False
    while not last_look:
        last_look = ended.wait(_EVERY_S)
        try:
            store = store or Store.open(store_url, create=False)
            if runs.find_run(store, run_id) is not None:
                yield read_progress(store, run_id)
        except AgrpoError:
            continue  # no store yet, or a busy one: the next look will tell
    if store is not None:
        store.close()


def _lines(store_url: str, run_id: str, console: Console, ended: threading.Event) -> None:
    """For logs: each phase and each step once."""
    phase, printed = "", None
    for progress in _looks(store_url, run_id, ended):
        if printed is None:  # steps of earlier attempts were printed by them
            printed = progress.history[-1][0] if progress.history else 0
        if progress.phase != phase:
            phase = progress.phase
            _line(console, progress, phase)
        for step, values in progress.history:
            if step > printed:
                printed = step
                _line(console, progress, _step_line(progress, step, values))


def _line(console: Console, progress: Progress, text: str) -> None:
    console.print(f"[{duration(progress.wall_s)}] {text}", highlight=False, markup=False, soft_wrap=True)


def _step_line(progress: Progress, step: int, values: dict[str, float]) -> str:
    total = f"/{progress.num_steps}" if progress.num_steps else ""
    return f"step {step}{total}: " + ", ".join(f"{name} {value}" for name, value in _numbers(values).items())


def _numbers(values: dict[str, float]) -> dict[str, str]:
    """What to watch: the first thing one looks at in any run."""
    return {
        "reward": number(values.get("reward")),
        "tokens/s": number(values.get("perf/wall_clock_trained_tokens_per_s"), 0),
        "generated tokens/s": number(values.get("rollout/generated_tokens_per_s"), 0),
        "staleness": number(values.get("sample/staleness_mean"), 1),
        "entropy": number(values.get("entropy")),
        "step": duration(values.get("perf/step_s")),
    }


def _panel(store_url: str, run_id: str, console: Console, ended: threading.Event) -> None:
    with Live(Text(f"{run_id}: starting"), console=console, refresh_per_second=4, transient=True) as live:
        for progress in _looks(store_url, run_id, ended):
            live.update(render(progress))


def render(progress: Progress) -> Group:
    """The panel: where it stands, the numbers to watch, the reward so far, what each process does."""
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(progress.run_id, style="bold"),
        Text(progress.phase),
        ProgressBar(total=1.0, completed=progress.done or 0.0, width=30),
        Text(f"step {progress.step}" + (f" of {progress.num_steps}" if progress.num_steps else "")),
        Text(duration(progress.wall_s)),
    )
    numbers = Table.grid(padding=(0, 2))
    numbers.add_row(*(Text.assemble((f"{name} ", "dim"), value) for name, value in _numbers(progress.last).items()))
    doings = Table.grid(padding=(0, 2))
    for name, state in progress.processes.items():
        doings.add_row(Text(f"  {name}", style="dim"), Text(progress.waits_for.get(name, state)))
    rewards = [values["reward"] for _, values in progress.history if "reward" in values]
    return Group(head, numbers, Text.assemble(("reward ", "dim"), sparkline(rewards)), doings)


def sparkline(values: list[float], width: int = 60) -> str:
    """The last values as a row of bars, the largest as a full one."""
    shown = [value for value in values if value == value][-width:]
    if not shown:
        return ""
    low, high = min(0.0, *shown), max(shown)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in shown)
