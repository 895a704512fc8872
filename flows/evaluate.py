"""The evaluation flow: a checkpoint of a run on its held-out prompts, through a server of its own."""

from typing import Any
from urllib.parse import urlsplit

from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed

from agrpo.cli.numbers import estimates
from agrpo.cli.stores import opened
from agrpo.errors import BadInput
from agrpo.evaluation.tasks import prompts_of
from agrpo.session.evaluating import to_evaluate
from agrpo.settings import DataSettings
from flows.again import ended_already
from tasks import evaluation
from tasks.timeline import load_secrets, migrate, shown, unless_away

MAX_ATTEMPTS = 5


@flow(name="agrpo-evaluate", flow_run_name="evaluate {run}", persist_result=False)
def evaluate(
    run: str,
    step: int | None = None,
    url: str | None = None,
    data: DataSettings | None = None,
    store: str | None = None,
) -> State[Any]:
    """Evaluate a checkpoint of a run on its held-out prompts.

    Args:
        run: Name of the run.
        step: Step of the checkpoint; none for the last one, 0 for the model that the run began with.
        url: A server that serves these weights already; none starts a vLLM server for them.
        data: The prompts; none for those of the run file's section `evaluation`.
        store: The store's URL without a password; none for AGRPO_DATABASE_URL or the default.
    """
    ended = ended_already(MAX_ATTEMPTS)
    if ended is not None:
        return ended
    if store is not None and urlsplit(store).password is not None:
        raise BadInput("store: Prefect keeps parameters, and this one holds a password; leave it to AGRPO_DATABASE_URL")
    with opened(store) as kept:
        shown(migrate, kept.url)
        asked = to_evaluate(kept, run, data)
        if asked.secrets:
            shown(load_secrets, asked)
        found = shown(evaluation.evaluate, kept, asked, step, url)
    lines = [f"# {run}, step {found.step}, on {prompts_of(asked)}", "", "| | value | 95 % interval |", "|---|---|---|"]
    lines += [f"| {name} | {value} | {low} to {high} |" for name, value, low, high in estimates(found.values)]
    unless_away(create_markdown_artifact, "\n".join(lines), description=f"evaluation of {run}")
    return Completed(message=f"evaluation {found.id} of {run}, step {found.step}")
