"""The nightly flow: train from the weights promoted last, evaluate against them, promote or roll back."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect import State, flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from agrpo.runfile import RunFile
from agrpo.session.nightly import Night, begun_by, check_night, give_up, plan_night
from agrpo.store import Store
from agrpo.store.evaluations import Promotion
from flows.again import ended_already
from flows.train import train
from tasks import evaluation
from tasks.timeline import load_secrets, migrate, shown, unless_away

_LATE = timedelta(hours=1)


def is_missed(tags: list[str], scheduled: datetime, run_count: int, now: datetime) -> bool:
    """Whether a schedule's run comes so late that the worker must have been away: they would all come at once."""
    return "auto-scheduled" in tags and run_count <= 1 and now - scheduled > _LATE


@flow(name="agrpo-nightly", flow_run_name="{config.name}", persist_result=False)
def nightly(config: RunFile) -> State[Any]:
    """One night of a recurring training; `name` is the lineage's, each night's run has a number behind it."""
    ended = ended_already(config.limits.max_attempts)
    if ended is not None:
        return ended
    if is_missed(flow_run.tags, flow_run.scheduled_start_time, flow_run.run_count, datetime.now(UTC)):
        return Completed(message="a night that was missed is not made up for; the next one comes by schedule")
    if config.secrets:
        shown(load_secrets, config)
    check_night(config)
    shown(migrate, config.store_url)
    store = Store.open(config.store_url)
    try:
        found = one_night(
            store,
            config,
            str(flow_run.id),
            lambda run: train(run, return_state=True),
            lambda night: shown(evaluation.conclude, store, night),
        )
    finally:
        store.close()
    if isinstance(found, State):
        return found
    page = f"# {found.run_id}: {found.reason}"
    unless_away(create_markdown_artifact, page, description=f"decision on {found.run_id}")
    return Completed(message=found.reason)


def one_night(
    store: Store,
    config: RunFile,
    flow_run_id: str,
    train: Callable[[RunFile], State[Any]],
    conclude: Callable[[Night], Promotion],
) -> Promotion | State[Any]:
    """Train and decide; or the decision, when this flow run made it already and its word was lost; or Cancelled."""
    decision = begun_by(store, config.name, flow_run_id)
    if decision is not None:
        return decision
    night = plan_night(store, config)
    state = train(night.run)
    if state.is_cancelled():
        return Cancelled(message=f"night {night.run.name} was stopped; Retry, or the next night, goes on with it")
    if not state.is_completed():
        give_up(store, night)
        state.result(raise_on_failure=True)
    return conclude(night)
