"""`agrpo show RUN`: what became of a run."""

import dataclasses
import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agrpo.cli.numbers import duration, evaluation_line, number
from agrpo.cli.stores import opened
from agrpo.store import evaluations, events, processes, runs
from agrpo.store.runs import RunSummary

_LAST_EVENTS = 5
_LAST_EVALUATIONS = 5


def print_run(store_url: str | None, run_id: str, as_json: bool) -> None:
    """The summary, the last evaluations, the living processes and the last events of a run."""
    with opened(store_url) as store:
        summary = runs.summary(store, run_id)
        evaluated = evaluations.of_run(store, run_id)
        alive = processes.live(store, run_id)
        happened = [event for event in events.events(store, run_id) if event.kind != "phase"]
    if as_json:
        shown = dataclasses.asdict(summary) | {"evaluations": [dataclasses.asdict(one) for one in evaluated]}
        print(json.dumps(shown))
        return
    console = Console()
    console.print(summary_table(summary))
    for one in evaluated[-_LAST_EVALUATIONS:]:
        console.print(f"  evaluation: {evaluation_line(one)}", highlight=False)
    for process in alive:
        console.print(f"  alive: {process.kind} {process.index} (pid {process.pid}), log {process.log_path}")
    for event in happened[-_LAST_EVENTS:]:
        console.print(f"  {event.kind}: {event.message}", highlight=False, markup=False)


def summary_table(summary: RunSummary) -> Table:
    """The run's outcome as rows of name and value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("run", f"{summary.run_id} ({summary.status})")
    table.add_row("steps", str(summary.step))
    reward = f"{number(summary.reward_first_fifth)} -> {number(summary.reward_last_fifth)}"
    table.add_row("reward", f"{reward} (mean of the first and of the last fifth of the steps)")
    table.add_row("time", duration(summary.wall_s))
    table.add_row("samples", _counts(summary.samples))
    table.add_row("attempts", f"{summary.attempts} (restarted processes: {summary.restarts})")
    table.add_row("checkpoint", summary.checkpoint or "none yet")
    if summary.error:
        table.add_row("error", Text(summary.error))
    return table


def _counts(by_status: dict[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(by_status.items())) or "none yet"
