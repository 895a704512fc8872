"""The nightly flow: train from the weights promoted last, evaluate against them, promote or roll back."""

from datetime import UTC, datetime, timedelta
from typing import Any

from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from prefect.states import Completed

from agrpo.runfile import RunFile
from agrpo.session.nightly import plan_night
from agrpo.store import Store
from flows.train import train
from tasks import evaluation
from tasks.timeline import migrate, shown

_LATE = timedelta(hours=1)


def is_missed(tags: list[str], scheduled: datetime, run_count: int, now: datetime) -> bool:
    """Whether a schedule's run comes so late that the worker must have been away: they would all come at once."""
    return "auto-scheduled" in tags and run_count <= 1 and now - scheduled > _LATE


@flow(name="agrpo-nightly", flow_run_name="{config.name}", persist_result=False)
def nightly(config: RunFile) -> State[Any]:
    """One night of a recurring training; `name` is the lineage's, each night's run has a number behind it."""
    if is_missed(flow_run.tags, flow_run.scheduled_start_time, flow_run.run_count, datetime.now(UTC)):
        return Completed(message="a night that was missed is not made up for; the next one comes by schedule")
    shown(migrate, config.store_url)
    store = Store.open(config.store_url)
    try:
        night = plan_night(store, config)
        train(night.run, return_state=True).result(raise_on_failure=True)
        decision = shown(evaluation.conclude, store, night)
    finally:
        store.close()
    create_markdown_artifact(f"# {night.run.name}: {decision.reason}", description=f"decision on {night.run.name}")
    return Completed(message=decision.reason)
