"""The one launcher of an attempt: starts, watches, restarts and stops the processes of a run.

Three threads beside the caller's: the lease's, one that looks after the children, one that asks servers for their
health. None of them raises; what they meet is raised by `raise_if_failed` and by every waiting call.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from agrpo.errors import AgrpoError, BadInput, ChildFailed, LeaseLost, Outage
from agrpo.launch import adopt, exits
from agrpo.launch.child import ChildProcess, ChildSpec, end_all, last_lines
from agrpo.launch.ends import may_restart, why_over
from agrpo.launch.health import Healthy, ServerWatch
from agrpo.launch.lease import LeaseFollower, LeaseKeeper
from agrpo.launch.loops import LoopWatch
from agrpo.launch.standby import Standby
from agrpo.launch.tracked import ChildView, Tracked, backoff_s, giving_up, open_process, register
from agrpo.store import Attempt, events, processes, servers
from agrpo.store.processes import ProcessRecord

_TICK_S = 0.2


class Launcher:
    """Owns the processes of one attempt; a context manager that leaves none of them behind."""

    def __init__(
        self,
        attempt: Attempt,
        run_dir: Path,
        healthy: Healthy | None = None,
        lease_ttl_s: float = 30.0,
        renew_every_s: float = 5.0,
        owns_run: bool = True,
    ) -> None:
        """`owns_run`: keep the lease; else another launcher does, and this one works for its attempt while it lasts."""
        self.attempt = attempt
        self.run_dir = run_dir
        """Where log paths that are not absolute begin."""
        self._healthy = healthy
        self._children: list[Tracked] = []
        self._failure: Exception | None = None
        self._lost = False
        self._stopping = threading.Event()
        self._changed = threading.Condition(threading.RLock())
        keeper = LeaseKeeper if owns_run else LeaseFollower
        self._lease = keeper(attempt, lease_ttl_s, renew_every_s, self._fail)
        self.loops = LoopWatch(attempt, owns_run)
        self._threads = [threading.Thread(target=self._supervise, name="supervision", daemon=True)]
        self._watch = None if healthy is None else ServerWatch(attempt, healthy, self.live_servers, self.end_hung)
        if self._watch is not None:
            looking = threading.Thread(target=self._watch.run, args=(self._stopping,), name="health", daemon=True)
            self._threads.append(looking)

    def __enter__(self) -> Self:
        self._lease.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self, spec: ChildSpec) -> int:
        """Start a child and register it; returns the id of its row."""
        spec = replace(spec, log_path=self.run_dir.absolute() / spec.log_path)
        with self._changed:
            self._refuse_second(spec)
            process, process_id = self._launch(spec)
            self._children.append(Tracked(spec, process, process_id, spec.url))
            return process_id

    def adopt(self, spec: ChildSpec, healthy: Healthy | None = None) -> bool:
        """Take over the server that an earlier attempt left, when it is what `spec` would start and healthy.

        One that does not fit is ended, so that `start` finds its port and memory free.
        """
        self._refuse_second(spec)
        left = [
            record for record in adopt.leftovers(self.attempt) if (record.kind, record.index) == (spec.kind, spec.index)
        ]
        for record in left:
            if adopt.fits(record, spec) and self._adopt(record, spec, healthy or self._healthy):
                adopt.end(self.attempt, [other for other in left if other is not record])
                return True
        adopt.end(self.attempt, left)
        return False

    def reap_leftovers(self, adoptable: tuple[ChildSpec, ...] | list[ChildSpec] = ()) -> None:
        """End what earlier attempts left on this host, except servers that one of the specs could adopt."""
        left = adopt.leftovers(self.attempt)
        adopt.end(self.attempt, [record for record in left if not any(adopt.fits(record, spec) for spec in adoptable)])

    def children(self) -> list[ChildView]:
        """Every child with its state, in the order of their starts."""
        return [child.view() for child in list(self._children)]

    def live_servers(self) -> dict[int, float]:
        """Processes that serve now, each with the `time.monotonic()` of its start."""
        running = [c for c in list(self._children) if c.url is not None and c.state == "running"]
        return {child.process_id: child.started_at for child in running}

    def raise_if_failed(self) -> None:
        """Raise what ended the run: ChildFailed with the child's last lines, LeaseLost, or a bug of ours."""
        if self._failure is not None:
            raise self._failure

    def wait_healthy(self, index: int, timeout_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until a started server answers. Raises what `raise_if_failed` and `meanwhile` raise, and Outage."""
        child = self._find_server(index)
        if self._healthy is None:
            raise BadInput("this launcher has no health check: give Launcher(..., healthy=...) one")
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._is_healthy(child):
                self.raise_if_failed()
                meanwhile()
                if time.monotonic() >= deadline:
                    late = f"does not answer at {child.url} after {timeout_s:g} s"
                    raise Outage(f"{child.spec.name} {late}; {child.log_end()}")
                self._changed.wait(_TICK_S)

    def end_hung(self, process_id: int, reason: str) -> None:
        """End a child that lives but does nothing; its end is then treated like any other."""
        with self._changed:
            for child in self._children:
                if child.process_id == process_id and child.state == "running":
                    events.add(self.attempt, "hung", f"{child.spec.name} {reason}", process_id=process_id)
                    child.process.terminate()

    def poll(self) -> None:
        """Notice ends, restart what is due. Raises ChildFailed or LeaseLost; the supervision thread calls it."""
        self._lease.check_time()
        with self._changed:
            for child in self._children:
                if self._stopping.is_set() or self._failure is not None:
                    return
                if child.state == "running" and child.process.has_ended():
                    self._on_end(child)
                    self._changed.notify_all()
                elif child.state == "restarting" and time.monotonic() >= child.restart_at:
                    self._restart(child)
                elif child.state == "running":
                    child.standby.keep()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End every child at once and wait until nothing of them is left: SIGTERM, and SIGKILL after `timeout_s`.

        After a lost lease the children have been let go already, and servers that another attempt may have adopted
        are not touched.
        """
        self._stopping.set()
        if not self._lease.is_surely_held():
            self._check_lease()
        # At once, whatever holds the lock; then again, for what was being started meanwhile.
        end_all(self._to_be_ended(), timeout_s)
        with self._changed:
            end_all(self._to_be_ended(), timeout_s)
            for child in self._children:
                if child.state in ("running", "restarting"):
                    self._note_stopped(child)
            self._changed.notify_all()
        self._lease.stop()

    def _to_be_ended(self) -> list[ChildProcess]:
        ours = [child for child in list(self._children) if not (self._lost and child.spec.orphan_grace_s > 0)]
        return [process for child in ours for process in child.living()]

    def _refuse_second(self, spec: ChildSpec) -> None:
        self.raise_if_failed()
        if any((c.spec.kind, c.spec.index) == (spec.kind, spec.index) for c in self._children):
            raise BadInput(f"{spec.name} has been started already: give each child of a kind its own index")

    def _launch(self, spec: ChildSpec, standby: Standby | None = None) -> tuple[ChildProcess, int]:
        if self._stopping.is_set():
            raise ChildFailed(f"{spec.name} is not started: the launcher has been stopped")
        process = open_process(spec, standby)
        with giving_up(process):
            process_id = register(self.attempt, spec, process)
            process.release(process_id)
        return process, process_id

    def _adopt(self, record: ProcessRecord, spec: ChildSpec, healthy: Healthy | None) -> bool:
        process = adopt.adopt_process(record)
        if process is None:
            return False
        with giving_up(process):
            if record.url is None or healthy is None or not healthy(record.url):
                process.let_go()
                return False
            message = f"{spec.name} of attempt {record.token} at {record.url} is healthy and serves on"
            events.add(self.attempt, "adopted", message, process_id=record.id, pid=record.pid)
            self._mark_servers(record.id, "healthy")
            processes.adopt(self.attempt, record.id)  # last: what fails before can be done again
        with self._changed:
            adopted = replace(spec, log_path=Path(record.log_path))
            self._children.append(Tracked(adopted, process, record.id, record.url))
        return True

    def _on_end(self, child: Tracked) -> None:
        """Record an end and decide what follows; the writes come first, so that an outage repeats all of it."""
        code = child.process.exit_code
        reason = f"{child.spec.name} {exits.describe(code)}"
        processes.ended(self.attempt, child.process_id, code, reason)
        if child.url is not None:
            self._mark_servers(child.process_id, "lost")
        verdict = exits.verdict(code)
        if verdict is exits.Verdict.DONE and child.url is None:
            return child.enter("done")
        if verdict is exits.Verdict.LEASE_LOST:
            self._lease.renew()
        in_a_row = 0 if time.monotonic() - child.started_at >= child.spec.steady_after_s else child.in_a_row
        if may_restart(child, code, in_a_row, self._has_answered(child)):
            return self._plan_restart(child, in_a_row, reason, code)
        error = why_over(child, code, reason, self._has_answered(child))
        if child.spec.optional:
            first = str(error).partition("\n")[0].rstrip(":")
            message = f"the run goes on without {child.spec.name}: {first}"
            events.add(self.attempt, "given_up", message, log=last_lines(child.spec.log_path))
        child.enter("failed")
        if not child.spec.optional:
            raise error

    def _has_answered(self, child: Tracked) -> bool:
        return self._watch is None or self._watch.has_answered(child.process_id)

    def _plan_restart(self, child: Tracked, in_a_row: int, reason: str, code: int | None) -> None:
        wait_s = backoff_s(child.spec, in_a_row)
        message = f"{reason}; restart {in_a_row + 1} of {child.spec.restart_limit} in {wait_s:g} s"
        detail = {"process_kind": child.spec.kind, "index": child.spec.index, "exit_code": code}
        events.add(self.attempt, "restart", message, **detail, log=last_lines(child.spec.log_path))
        child.in_a_row = in_a_row + 1
        child.restart_at = time.monotonic() + wait_s
        child.enter("restarting")

    def _restart(self, child: Tracked) -> None:
        child.restart_at = time.monotonic() + 1.0  # when the store is away: not at every tick
        child.restarted(*self._launch(child.spec, child.standby))

    def _mark_servers(self, process_id: int, state: servers.State) -> None:
        for row in servers.servers(self.attempt.store, self.attempt.run_id):
            if row.process_id == process_id:
                servers.set_state(self.attempt, row.id, state)

    def _find_server(self, index: int) -> Tracked:
        for child in self._children:
            if (child.spec.kind, child.spec.index) == ("server", index):
                return child
        raise BadInput(f"there is no server {index}: start it first")

    def _is_healthy(self, child: Tracked) -> bool:
        with contextlib.suppress(Outage):
            rows = servers.healthy(self.attempt.store, self.attempt.run_id)
            return any(row.process_id == child.process_id for row in rows)
        return False

    def _check_lease(self) -> None:
        try:
            self._lease.renew()
        except Outage:
            return
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Remember the first failure. A lost lease also lets every child go, without waiting for any lock or write."""
        self._failure = self._failure or error
        if isinstance(error, LeaseLost):
            self._lost = True
            for child in list(self._children):
                child.let_go()

    def _supervise(self) -> None:
        while not self._stopping.wait(_TICK_S):
            try:
                self.poll()
                self.loops.check(list(self._children), self.end_hung)
            except Outage:
                continue
            except Exception as error:
                self._fail(error)

    def _note_stopped(self, child: Tracked) -> None:
        if child.state == "running" and not self._lost:
            with contextlib.suppress(AgrpoError):  # the processes are gone; the next attempt finds out by itself
                processes.ended(self.attempt, child.process_id, child.process.exit_code, "stopped")
                self._mark_servers(child.process_id, "lost")
        child.enter("stopped")
