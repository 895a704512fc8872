"""The stages of evaluations, each a thin call into agrpo."""

from agrpo.runfile import RunFile
from agrpo.session.evaluating import evaluate_run
from agrpo.session.nightly import Night, conclude_night
from agrpo.store import Store
from agrpo.store.evaluations import Evaluation, Promotion
from tasks.timeline import stage


@stage(task_run_name="evaluate {run.name}")
def evaluate(store: Store, run: RunFile, step: int | None, url: str | None) -> Evaluation:
    """Answer and score the held-out prompts."""
    return evaluate_run(store, run, step, url)


@stage(task_run_name="evaluate and decide")
def conclude(store: Store, night: Night) -> Promotion:
    """Compare with the baseline, promote or roll back."""
    return conclude_night(store, night)
