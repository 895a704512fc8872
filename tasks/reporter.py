"""Carries a run's progress from the store to Prefect, and Prefect's cancellation to the run.

It works in a thread of its own and swallows what Prefect's server does to it: a call into a server that is away hangs
for a minute, and no step of training may wait for that.
"""

import contextvars
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run

from agrpo.cli.progress import Progress, read_progress
from agrpo.cli.words import duration, number
from agrpo.errors import AgrpoError
from agrpo.session.session import Session
from agrpo.store import runs

_EVERY_S = 10.0
_WATCHED = ("reward", "entropy", "sample/staleness_mean", "perf/step_s", "perf/wall_clock_trained_tokens_per_s")


@contextmanager
def reporting(session: Session) -> Iterator[None]:
    """Report while the block works; the last report comes at its end."""
    ended = threading.Event()
    reporter = _Reporter(session, str(flow_run.id))
    inherited = contextvars.copy_context()  # artifacts belong to the flow run of the context
    thread = threading.Thread(target=lambda: inherited.run(reporter.work, ended), name="reporter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=3.0)


class _Reporter:
    """Two artifacts, made once and then updated in place."""

    def __init__(self, session: Session, flow_run_id: str) -> None:
        self._session = session
        self._flow_run_id = flow_run_id
        self._key = re.sub(r"[^a-z0-9]+", "-", session.run.name.lower()).strip("-")
        self._made: dict[str, UUID] = {}

    def work(self, ended: threading.Event) -> None:
        """Report every few seconds until the end, and once more then."""
        over = False
        while not over:
            over = ended.wait(_EVERY_S)
            with suppress(Exception):  # Prefect is a window: what breaks it must not touch the run
                self._report()
            if not over:
                with suppress(Exception):
                    self._obey()

    def _report(self) -> None:
        attempt = self._session.attempt
        progress = read_progress(attempt.store, attempt.run_id)
        if progress.num_steps:
            done = 100.0 * progress.step / progress.num_steps
            self._put("progress", done, lambda key: create_progress_artifact(done, key, f"steps of {progress.run_id}"))
        text = markdown(progress)
        self._put("run", text, lambda key: create_markdown_artifact(text, key, f"run {progress.run_id}"))

    def _put(self, name: str, data: Any, make: Any) -> None:
        if name not in self._made:
            self._made[name] = make(f"{self._key}-{name}")
            return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._made[name], ArtifactUpdate(data=data))

    def _obey(self) -> None:
        """A cancelled flow run stops the run, also where no worker is left to say so."""
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(self._flow_run_id)).state
        if state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED):
            with suppress(AgrpoError):
                runs.request(self._session.attempt.store, self._session.attempt.run_id, "stop")


def markdown(progress: Progress) -> str:
    """The run on one page: where it stands, its last numbers, its processes."""
    total = f" of {progress.num_steps}" if progress.num_steps else ""
    lines = [f"# {progress.run_id}: {progress.phase}", ""]
    lines += [f"step {progress.step}{total}, {duration(progress.wall_s)}", "", "| metric | last |", "|---|---|"]
    lines += [f"| {name} | {number(progress.last[name], 3)} |" for name in _WATCHED if name in progress.last]
    lines += ["", "| process | state | doing |", "|---|---|---|"]
    doing = progress.waits_for
    lines += [f"| {name} | {state} | {doing.get(name, '')} |" for name, state in progress.processes.items()]
    return "\n".join(lines)
