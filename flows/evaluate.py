"""The evaluation flow: a checkpoint of a run on its held-out prompts, through a server of its own."""

import os
from typing import Any

from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from agrpo.cli.words import estimates
from agrpo.settings import StoreSettings
from agrpo.store import Store
from tasks import evaluation
from tasks.timeline import migrate, shown


@flow(name="agrpo-evaluate", flow_run_name="evaluate {run}", persist_result=False)
def evaluate(run: str, step: int | None = None) -> State[Any]:
    """Evaluate a checkpoint of a run, by default the last one; step 0 is the model it began with."""
    url = os.environ.get("AGRPO_DATABASE_URL") or StoreSettings().url
    shown(migrate, url)
    store = Store.open(url)
    try:
        found = shown(evaluation.evaluate, store, run, step)
    finally:
        store.close()
    lines = [f"# {run}, step {found.step}", "", "| | value | 95 % interval |", "|---|---|---|"]
    lines += [f"| {name} | {value} | {low} to {high} |" for name, value, low, high in estimates(found.values)]
    create_markdown_artifact("\n".join(lines), description=f"evaluation of {run}")
    return Completed(message=f"evaluation {found.id} of {run}, step {found.step}")
