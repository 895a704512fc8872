"""The stages that a person sees in Prefect's timeline, each a thin call into agrpo.

Effects are never cached: every task says so, whatever the user's Prefect profile says. What passes through them are
settings, numbers and the session; tokens and tensors never do.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import httpx
from prefect import task
from prefect.blocks.system import Secret
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import Pause, PrefectHTTPStatusError

from agrpo.errors import BadInput
from agrpo.runfile import RunFile
from agrpo.session import check
from agrpo.session.session import Session
from agrpo.store import Store

stage = partial(task, cache_policy=NO_CACHE, persist_result=False)
SAYS_NO = (httpx.TransportError, PrefectHTTPStatusError)
"""What Prefect's server does to us when it is away, or in trouble, or does not know us."""
_NO_TASK_NOW = (*SAYS_NO, Pause)
"""Or the flow run is paused, and Prefect would end a process that is to keep its servers."""


def shown(staged: Any, *arguments: Any) -> Any:
    """Call a task; when Prefect is away, or a pause keeps tasks from starting, do its work without it.

    Each stage here may be begun twice: it looks first at what is there already.
    """
    try:
        return staged(*arguments)
    except _NO_TASK_NOW:
        return staged.fn(*arguments)


def unless_away(tell: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Tell Prefect something that stands in the store, too: a run is not to fail because Prefect is away."""
    with suppress(*_NO_TASK_NOW):
        tell(*arguments, **named)


@stage(task_run_name="look for it in the store")
def is_finished(config: RunFile) -> bool:
    """Whether the run is finished already: then nothing of it is imported or loaded."""
    found = check.find_begun(config)
    return found is not None and found.status == "finished"


@stage(task_run_name="migrate store", retries=2, retry_delay_seconds=1)
def migrate(store_url: str) -> None:
    """Bring the store's schema up to date."""
    store = Store.open(store_url)
    store.migrate()
    store.close()


@stage(task_run_name="load secrets")
def load_secrets(config: RunFile) -> None:
    """Put secrets where the run's processes look for them; they are never parameters and never in the store."""
    for variable, block in config.secrets.items():
        try:
            os.environ[variable] = cast(Secret[str], Secret.load(block)).get()
        except ValueError:
            raise BadInput(
                f"secrets.{variable}: Prefect has no Secret block '{block}'; make it in the UI under Blocks, Secret"
            ) from None


@stage(task_run_name="prepare model")
def prepare_model(session: Session) -> str:
    """Make the model if it is one of those that agrpo makes; its path."""
    model = session.run.model
    if model.prepare is not None:
        session.enter("preparing the model")
        # In a process of its own, so that this one never loads torch.
        made = subprocess.run([sys.executable, "-m", "agrpo.models", model.prepare], capture_output=True, text=True)
        if made.returncode != 0:
            raise BadInput(made.stderr.strip().splitlines()[-1].removeprefix("agrpo: "))
    return model.path


@stage(task_run_name="prepare data")
def prepare_data(config: RunFile) -> None:
    """Load the rows once, so that bad data is known before the run is."""
    check.check_data(config)


@stage(task_run_name="start server {index}")
def start_server(session: Session, index: int) -> None:
    """Start a vLLM server or take over the one that is there."""
    session.enter(f"starting server {index}")
    session.start_server(index)


@stage(task_run_name="wait healthy {index}")
def wait_healthy(session: Session, index: int) -> None:
    """Wait until the server answers."""
    session.enter(f"waiting for server {index}")
    session.wait_healthy(index)


@stage(task_run_name="rollout worker {index}")
def start_worker(session: Session, index: int) -> None:
    """Start a process that turns prompts into scored samples."""
    session.start_worker(index)


@stage(task_run_name="trainer")
def start_trainer(session: Session) -> None:
    """Start the process that learns."""
    session.start_trainer()


@stage(task_run_name="evaluator")
def start_evaluator(session: Session) -> None:
    """Start the process that evaluates while training goes on."""
    session.start_evaluator()


@stage(task_run_name="train from step {after}")
def train_segment(session: Session, after: int) -> int:
    """Wait for the next checkpoint; its step."""
    return session.wait_for_checkpoint(after)


@stage(task_run_name="last evaluation")
def wait_for_evaluation(session: Session) -> None:
    """Wait for the evaluation that is due when training has ended."""
    session.enter("waiting for the last evaluation")
    session.wait_for_evaluation()


@stage(task_run_name="publish")
def publish(session: Session) -> str:
    """Name the last checkpoint as the run's model."""
    return str(session.publish())
