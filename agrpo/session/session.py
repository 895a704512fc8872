"""One attempt at a run: its processes, what is waited for, and how it ends."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from agrpo.errors import LeaseLost, Outage, RunStopped
from agrpo.evaluation.due import due_step
from agrpo.inference.client import is_healthy
from agrpo.launch.launcher import Launcher
from agrpo.runfile import RunFile
from agrpo.session import specs
from agrpo.session.placement import placement
from agrpo.store import Attempt, checkpoints, events, leases, policies, runs, servers
from agrpo.store.leases import Outcome

T = TypeVar("T")

_TICK_S = 0.5
_SOON_S = 5.0
"""A server that was started elsewhere should have answered by then."""
STOP_S = 8.0
"""From SIGTERM to SIGKILL at a stop: a person who pressed Ctrl-C waits 10 s at most."""


class Session:
    """Starts the processes of a run and waits for its checkpoints; a context manager that leaves no process behind."""

    def __init__(self, run: RunFile, attempt: Attempt) -> None:
        self.run = run
        self.attempt = attempt
        self._placement = placement(run)
        self._launcher = Launcher(attempt, run.run_dir, healthy=is_healthy)

    def __enter__(self) -> Self:
        self._launcher.__enter__()
        try:
            self._reap_leftovers()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.enter("stopping")
        self._launcher.stop(STOP_S)
        if not isinstance(error, LeaseLost):
            with contextlib.suppress(LeaseLost):  # then another attempt concludes the run
                self._conclude(error)

    def enter(self, phase: str) -> None:
        """Say what the run is doing now."""
        with contextlib.suppress(LeaseLost, Outage):
            events.add(self.attempt, "phase", phase)

    @property
    def num_servers(self) -> int:
        """How many servers generate."""
        return len(self.run.servers.urls) or self.run.servers.count

    def start_server(self, index: int) -> None:
        """Start a server, or adopt the one that an earlier attempt left; one given by URL is only written down."""
        if self.run.servers.urls:
            servers.register(self.attempt, self.run.servers.urls[index], index)
            return
        spec = specs.server(self.run, index, self._placement)
        if not self._launcher.adopt(spec):
            self._launcher.start(spec)

    def wait_healthy(self, index: int) -> None:
        """Wait until a server answers. Raises ChildFailed, RunStopped, or Outage when it takes too long."""
        limit_s = self.run.servers.start_timeout_s
        if not self.run.servers.urls:
            return self._launcher.wait_healthy(index, limit_s, self._raise_if_stopped)
        url, begun, told = self.run.servers.urls[index], time.monotonic(), False
        while url not in self._ask(self._healthy_urls):
            self._launcher.raise_if_failed()
            self._raise_if_stopped()
            waited_s = time.monotonic() - begun
            if waited_s > limit_s:
                raise Outage(f"nobody answered at {url} for {limit_s:g} s: start that server, or mend servers.urls")
            if waited_s > _SOON_S and not told:
                self.enter(f"nobody answers at {url} yet; start that server, or mend servers.urls ({limit_s:g} s left)")
                told = True
            time.sleep(_TICK_S)

    def start_worker(self, index: int) -> None:
        """Start a rollout worker."""
        self._launcher.start(specs.worker(self.run, self.attempt, index))

    def start_trainer(self) -> None:
        """Start the trainer with all its ranks."""
        self._launcher.start(specs.trainer(self.run, self.attempt, self._placement))

    def start_evaluator(self) -> None:
        """Start the process that evaluates every so many steps."""
        self._launcher.start(specs.evaluator(self.run, self.attempt))

    def wait_for_checkpoint(self, after: int) -> int:
        """Wait for a checkpoint behind step `after`; its step, or `after` when training has ended without another.

        Raises RunStopped when somebody asked the run to stop, and whatever ended a process for good.
        """
        while (step := self.checkpoint_step()) <= after and not self.is_trained():
            self._launcher.raise_if_failed()
            self._raise_if_stopped()
            time.sleep(_TICK_S)
        return max(step, self.checkpoint_step())

    def checkpoint_step(self) -> int:
        """Step of the checkpoint that a restart would begin with, 0 before the first."""
        cursor = self._ask(lambda: checkpoints.cursor(self.attempt.store, self.attempt.run_id))
        return cursor.step if cursor else 0

    def is_trained(self) -> bool:
        """Whether the trainer has done its work."""
        return any(child.kind == "trainer" and child.state == "done" for child in self._launcher.children())

    def wait_for_evaluation(self) -> None:
        """Wait until no evaluation is due any more, or none can be made; servers and evaluator work meanwhile.

        An evaluator that has to be started twice meanwhile is not waited for. Raises what `wait_for_checkpoint` raises.
        """
        patience = self._evaluator_restarts() + 1
        while self._ask(self._is_evaluating) and self._evaluator_restarts() <= patience:
            self._launcher.raise_if_failed()
            self._raise_if_stopped()
            time.sleep(_TICK_S)

    def publish(self) -> Path:
        """Point `<run folder>/model` at the last checkpoint; its path."""
        link = self.run.run_dir / "model"
        cursor = checkpoints.cursor(self.attempt.store, self.attempt.run_id)
        if cursor is None:
            return link
        made = link.with_name(".model")
        made.unlink(missing_ok=True)
        made.symlink_to(Path(cursor.path).resolve())
        made.replace(link)
        return link

    def _reap_leftovers(self) -> None:
        """End what earlier attempts left: beside a new trainer or worker it would hold memory, cores or a GPU."""
        num_own = 0 if self.run.servers.urls else self.run.servers.count
        adoptable = [specs.server(self.run, index, self._placement) for index in range(num_own)]
        self._ask(lambda: self._launcher.reap_leftovers(adoptable))

    def _is_evaluating(self) -> bool:
        """Whether an evaluation is due, somebody makes it and a server has the weights: nobody sends them again."""
        store, run_id = self.attempt.store, self.attempt.run_id
        alive = any(c.kind == "evaluator" and c.state in ("running", "restarting") for c in self._launcher.children())
        version = policies.current_version(store, run_id)
        served = any(row.weight_version == version for row in servers.servers(store, run_id))
        return alive and served and due_step(store, self.run) is not None

    def _evaluator_restarts(self) -> int:
        return sum(child.restarts for child in self._launcher.children() if child.kind == "evaluator")

    def _healthy_urls(self) -> set[str]:
        return {row.url for row in servers.healthy(self.attempt.store, self.attempt.run_id)}

    def _raise_if_stopped(self) -> None:
        if self._ask(lambda: runs.get_run(self.attempt.store, self.attempt.run_id)).request == "stop":
            raise RunStopped(f"run {self.run.name} was asked to stop")

    def _ask(self, question: Callable[[], T]) -> T:
        """The store's answer, however long it is away: the launcher says when the lease has run out over it."""
        while True:
            try:
                return question()
            except Outage:
                self._launcher.raise_if_failed()
                time.sleep(_TICK_S)

    def _conclude(self, error: BaseException | None) -> None:
        """Write down how it ended: a KeyboardInterrupt or a signal stops a run, any other error fails it."""
        outcome: Outcome = "finished"
        if error is not None:
            stopped = isinstance(error, RunStopped) or not isinstance(error, Exception)
            outcome = "stopped" if stopped else "failed"
        runs.set_status(self.attempt, outcome, str(error) if outcome == "failed" else None)
        leases.release(self.attempt, outcome)
