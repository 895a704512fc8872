"""The training flow: the stages of a run in their order. Steps, groups and weight updates are plain code below it."""

import time
from typing import Any

from prefect import State, flow
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed

from agrpo.errors import LeaseHeld, RunStopped
from agrpo.launch.attach import Attached, attach
from agrpo.runfile import RunFile, config_hash, decisive, stored_config
from agrpo.session.check import check_input
from agrpo.session.session import Session
from agrpo.store import Store, command, leases, runs
from flows.again import ended_already
from tasks import timeline
from tasks.reporter import reporting
from tasks.timeline import shown

_STAND_BY_S = 2.0


@flow(name="agrpo-train", flow_run_name="{config.name}", persist_result=False)
def train(config: RunFile) -> State[Any]:
    """Train a model as the run file says, or continue where the run of that name stopped."""
    ended = ended_already(config.limits.max_attempts)
    if ended is not None:
        return ended
    if shown(timeline.is_finished, config):
        return _finished_already(config)
    if config.secrets:
        shown(timeline.load_secrets, config)
    check_input(config)
    shown(timeline.prepare_data, config)
    shown(timeline.migrate, config.store_url)
    store = Store.open(config.store_url)
    try:
        return _attached(config, store)
    finally:
        store.close()


def _finished_already(config: RunFile) -> State[Any]:
    return Completed(message=f"run {config.name} is finished already; nothing was done")


def _attach(config: RunFile, store: Store) -> Attached:
    """Prefect may start a flow run again while its first process lives: the second one then stands by."""
    settings, digest = stored_config(config), config_hash(config)
    owner = flow_run.root_flow_run_id  # that of the nightly flow, which is what a person or an automation begins again
    while True:
        try:
            limit = config.limits.max_attempts
            folder = config.run_dir
            return attach(store, config.name, settings, digest, folder, owner, max_attempts=limit, reading=decisive)
        except LeaseHeld:
            if leases.attempts(store, config.name)[-1].flow_run_id != owner:
                raise
            time.sleep(_STAND_BY_S)


def _attached(config: RunFile, store: Store) -> State[Any]:
    found = _attach(config, store)
    if found.attempt is None:
        return _finished_already(config)
    try:
        session = Session(config.kept_in(runs.get_run(store, config.name).run_dir), found.attempt)
        with reporting(session), session:  # the last report says how it ended
            _timeline(session)
    except (RunStopped, KeyboardInterrupt):
        return Cancelled(message=f"stopped; continue with: {command(f'resume {config.name}', config.store_url)}")
    return Completed(message=f"run {config.name} is finished")


def _timeline(session: Session) -> None:
    """Start what is missing, then wait from checkpoint to checkpoint."""
    shown(timeline.prepare_model, session)
    for index in range(session.num_servers):
        shown(timeline.start_server, session, index)
    # Worker and trainer load while the servers do: they wait for the servers by themselves.
    for index in range(session.run.workers.count):
        shown(timeline.start_worker, session, index)
    shown(timeline.start_trainer, session)
    if session.run.evaluation.steps is not None:
        shown(timeline.start_evaluator, session)
    for index in range(session.num_servers):
        shown(timeline.wait_healthy, session, index)
    session.enter("training")
    step = session.checkpoint_step()
    while not session.is_trained():
        step = shown(timeline.train_segment, session, step)
    shown(timeline.publish, session)
    if session.run.evaluation.steps is not None:
        shown(timeline.wait_for_evaluation, session)
