"""`agrpo evaluate RUN`: mean reward and pass@k of a checkpoint on held-out prompts."""

import dataclasses
import json
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from agrpo.cli.numbers import estimates
from agrpo.cli.stores import opened
from agrpo.evaluation.tasks import prompts_of
from agrpo.runfile import RunFile
from agrpo.session.evaluating import evaluate_run, to_evaluate
from agrpo.settings import DataSettings


def print_evaluation(
    store_url: str | None,
    run_id: str,
    step: int | None,
    url: str | None,
    data: str | None,
    as_json: bool,
    beforehand: Callable[[RunFile], None],
) -> None:
    """Evaluate unless the same evaluation is in the store already, then print it.

    `beforehand` makes ready what the run's own functions may want when they are imported.
    """
    with opened(store_url) as store:
        store.migrate()
        run = to_evaluate(store, run_id, _task_set(data))
        beforehand(run)
        found = evaluate_run(store, run, step, url)
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in (f"{run_id}, step {found.step}, on {prompts_of(run)}", "value", "95 % interval"):
        table.add_column(heading)
    for name, value, low, high in estimates(found.values):
        table.add_row(name, value, f"{low} to {high}")
    Console().print(table)


def _task_set(named: str | None) -> DataSettings | None:
    """A function of rows has a colon in its import path; what has none is a folder, a file or a name on the Hub."""
    if named is None:
        return None
    return DataSettings(rows=named) if ":" in named else DataSettings(path=named)
