"""Carries a run's progress from the store to Prefect, and what a person asks of Prefect to the run.

It works in a thread of its own and swallows what Prefect's server does to it: a call into a server that is away hangs
for a minute, and no step of training may wait for that.
"""

import contextvars
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.client.schemas.objects import StateType
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from agrpo.cli.progress import Progress, read_progress
from agrpo.errors import AgrpoError
from agrpo.plotting.history import read_history, read_marks
from agrpo.plotting.page import page
from agrpo.session.session import Session
from agrpo.store import evaluations, events, leases, runs
from tasks.page import markdown, picture

_EVERY_S = 5.0
_PLOT_EVERY_S = 30.0
_LAST_REPORT_S = 10.0
_REPORTS_UNTIL_NAMED = 3
"""Prefect's engine names a run that begins again, too, and that may come after us."""
_WORTH_A_LINE = {
    "restart",
    "given_up",
    "adopted",
    "hung",
    "server_lost_weights",
    "environment_changed",
    "checkpoint_skipped",
    "epoch_useless",
}
_STOPS = {StateType.CANCELLING, StateType.CANCELLED}


@contextmanager
def reporting(session: Session) -> Iterator[None]:
    """Report while the block works; the last report comes at its end."""
    ended = threading.Event()
    reporter = _Reporter(session, UUID(str(flow_run.id)))
    inherited = contextvars.copy_context()  # artifacts belong to the flow run of the context
    thread = threading.Thread(target=lambda: inherited.run(reporter.work, ended), name="reporter", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=_LAST_REPORT_S)


class _Reporter:
    """Artifacts that are made once and then updated in place, and a look at the flow run's state."""

    def __init__(self, session: Session, flow_run_id: UUID) -> None:
        self._session = session
        self._attempt = session.attempt
        self._flow_run_id = flow_run_id
        self._key = re.sub(r"[^a-z0-9]+", "-", session.run.name.lower()).strip("-")
        self._made: dict[str, UUID] = {}
        self._plot, self._plot_step, self._plot_at = "", 0, 0.0
        self._last_event = 0
        self._paused = False

    def work(self, ended: threading.Event) -> None:
        """Report every few seconds until the end, and once more then."""
        over, num_reports = False, 0
        while not over:
            if num_reports < _REPORTS_UNTIL_NAMED:
                with suppress(Exception):
                    self._name()
            over = ended.wait(_EVERY_S)
            num_reports += 1
            with suppress(Exception):  # Prefect is a window: what breaks it must not touch the run
                self._report(over)
            if not over:
                with suppress(Exception):
                    self._obey()

    def _name(self) -> None:
        """Call the flow run after run and attempt; tags find the run's other attempts."""
        run = self._session.run.name
        with get_client(sync_client=True) as client:
            tags = {*client.read_flow_run(self._flow_run_id).tags, f"run:{run}"}
            client.update_flow_run(self._flow_run_id, name=f"{run}, attempt {self._attempt.token}", tags=sorted(tags))

    def _report(self, over: bool) -> None:
        progress = read_progress(self._attempt.store, self._attempt.run_id)
        self._log()
        if progress.done is not None:
            done = 100.0 * progress.done
            about = f"how much of {progress.run_id} is made"
            self._put("progress", done, lambda key: create_progress_artifact(done, key, about))
        self._put_page(progress)
        if progress.history and self._plot_is_due(progress.history[-1][0], over):
            self._draw(progress.history[-1][0])
            self._put_page(progress)
        if over:
            self._name()

    def _put_page(self, progress: Progress) -> None:
        store, run_id = self._attempt.store, self._attempt.run_id
        text = markdown(progress, read_marks(store, run_id), self._plot, evaluations.of_run(store, run_id))
        self._put("run", text, lambda key: create_markdown_artifact(text, key, f"run {progress.run_id}"))

    def _plot_is_due(self, step: int, over: bool) -> bool:
        """At the end in any case: the last evaluation may have come behind the last step."""
        return over or (step > self._plot_step and time.monotonic() - self._plot_at > _PLOT_EVERY_S)

    def _draw(self, step: int) -> None:
        history = read_history(self._attempt.store, self._attempt.run_id)
        self._plot, self._plot_step, self._plot_at = picture(history), step, time.monotonic()
        document = self._session.run.run_dir.absolute() / "plot.html"
        document.write_text(page([history]))
        # As text: no browser follows a file:// link from a page that came over http.
        where = f"open {document} on {socket.gethostname()}"
        self._put("plot", where, lambda key: create_markdown_artifact(where, key, "where the plot page is"))

    def _put(self, name: str, data: Any, make: Any) -> None:
        """Make an artifact, or replace what it holds, also one of an earlier attempt."""
        key = f"{self._key}-{name}"
        if name not in self._made:
            found = self._find(key)
            self._made[name] = found or make(key)
            if found is None:
                return
        with get_client(sync_client=True) as client:
            client.update_artifact(self._made[name], ArtifactUpdate(data=data))

    def _find(self, key: str) -> UUID | None:
        """The artifact that an earlier process of this flow run has made."""
        of_run = ArtifactFilterFlowRunId(any_=[self._flow_run_id])
        with get_client(sync_client=True) as client:
            wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=of_run)
            found = client.read_artifacts(artifact_filter=wanted)
        return found[0].id if found else None

    def _log(self) -> None:
        """What began again, and why; what the children print stays in their own logs."""
        for event in events.events(self._attempt.store, self._attempt.run_id):
            if event.id > self._last_event and event.token == self._attempt.token:
                self._last_event = event.id
                if event.kind in _WORTH_A_LINE:
                    get_run_logger().warning("%s", event.message)

    def _obey(self) -> None:
        """Cancelled stops the run, also where no worker is left to say so; paused drains it, and resumed goes on."""
        with suppress(AgrpoError):
            states = self._states()
            if states & _STOPS:
                runs.request_of(self._attempt, "stop")
            elif (StateType.PAUSED in states) != self._paused:
                self._paused = not self._paused
                runs.request_of(self._attempt, "drain" if self._paused else "none")
                self._session.enter("paused: rollouts end, servers stay" if self._paused else "training")

    def _states(self) -> set[StateType]:
        """Of this flow run and of the one that began it, if another did: a person cancels or pauses a nightly there."""
        owner = leases.attempts(self._attempt.store, self._attempt.run_id)[-1].flow_run_id
        watched = {self._flow_run_id, UUID(str(owner))}
        with get_client(sync_client=True) as client:
            states = [client.read_flow_run(one).state for one in watched]
        return {state.type for state in states if state is not None}
