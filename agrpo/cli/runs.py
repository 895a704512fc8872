"""`agrpo runs`: every run in the store, newest first."""

import json
from datetime import datetime

from rich.console import Console
from rich.table import Table

from agrpo.cli.numbers import duration
from agrpo.cli.stores import opened
from agrpo.store import runs


def print_runs(store_url: str | None, as_json: bool) -> None:
    """One line a run: name, status, last step, time, checkpoint."""
    with opened(store_url) as store:
        found = runs.list_runs(store)
    if as_json:
        print(json.dumps([_plain(run) for run in found]))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("run", "status", "step", "worked", "created", "checkpoint"):
        table.add_column(heading, overflow="fold")
    for run in found:
        created = datetime.fromtimestamp(run.created_at).strftime("%Y-%m-%d %H:%M")
        table.add_row(run.run_id, run.status, str(run.step), duration(run.wall_s), created, run.checkpoint_path or "-")
    Console().print(table if found else "no runs yet; start one with: agrpo train RUN.yaml")


def _plain(run: runs.Run) -> dict[str, object]:
    return {
        "run": run.run_id,
        "status": run.status,
        "step": run.step,
        "wall_s": run.wall_s,
        "created_at": run.created_at,
        "checkpoint": run.checkpoint_path,
    }
