"""The evaluation flow: a checkpoint of a run on its held-out prompts, through a server of its own."""

import os
from typing import Any

from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from agrpo.cli.numbers import estimates
from agrpo.session.evaluating import settings_of
from agrpo.store import DEFAULT_URL, Store
from flows.again import ended_already
from tasks import evaluation
from tasks.timeline import load_secrets, migrate, shown, unless_away

MAX_ATTEMPTS = 5


@flow(name="agrpo-evaluate", flow_run_name="evaluate {run}", persist_result=False)
def evaluate(run: str, step: int | None = None, url: str | None = None) -> State[Any]:
    """Evaluate a checkpoint of a run on its held-out prompts.

    Args:
        run: Name of the run.
        step: Step of the checkpoint; none for the last one, 0 for the model that the run began with.
        url: A server that serves these weights already; none starts a vLLM server for them.
    """
    ended = ended_already(MAX_ATTEMPTS)
    if ended is not None:
        return ended
    store_url = os.environ.get("AGRPO_DATABASE_URL") or DEFAULT_URL
    shown(migrate, store_url)
    store = Store.open(store_url)
    try:
        settings = settings_of(store, run)
        if settings.secrets:
            shown(load_secrets, settings)
        found = shown(evaluation.evaluate, store, run, step, url)
    finally:
        store.close()
    lines = [f"# {run}, step {found.step}", "", "| | value | 95 % interval |", "|---|---|---|"]
    lines += [f"| {name} | {value} | {low} to {high} |" for name, value, low, high in estimates(found.values)]
    unless_away(create_markdown_artifact, "\n".join(lines), description=f"evaluation of {run}")
    return Completed(message=f"evaluation {found.id} of {run}, step {found.step}")
