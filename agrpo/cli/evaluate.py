"""`agrpo evaluate RUN`: mean reward and pass@k of a checkpoint on held-out prompts."""

import dataclasses
import json

from rich.console import Console
from rich.table import Table

from agrpo.cli.numbers import estimates
from agrpo.cli.stores import opened
from agrpo.session.evaluating import evaluate_run


def print_evaluation(store_url: str | None, run_id: str, step: int | None, url: str | None, as_json: bool) -> None:
    """Evaluate unless the same evaluation is in the store already, then print it."""
    with opened(store_url) as store:
        store.migrate()
        found = evaluate_run(store, run_id, step, url)
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in (f"{run_id}, step {found.step}", "value", "95 % interval"):
        table.add_column(heading)
    for name, value, low, high in estimates(found.values):
        table.add_row(name, value, f"{low} to {high}")
    Console().print(table)
