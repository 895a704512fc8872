"""A second process of a child: everything is loaded, and it waits for the id that makes it the child.

Loading takes a worker most of its start. Nothing is forked from it and no thread runs in it yet: when the child dies,
the waiting process is registered and told its id, like any other under a supervisor of its own, and the next one is
loaded later. Where it died, or has not loaded yet, a child starts as it does without.
"""

import contextlib
import time

from agrpo.errors import ChildFailed
from agrpo.launch import supervisor
from agrpo.launch.child import ChildSpec, SupervisedProcess

_RETRY_S = 60.0
"""Between two starts: one that died is looked for, and replaced, no sooner."""


class Standby:
    """The process that waits to take a child's place."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._process: SupervisedProcess | None = None
        self._due_at = time.monotonic() + (spec.standby_after_s or 0.0)

    def keep(self) -> None:
        """Start one when it is due: not at once, as its imports would take the cores from the child that starts."""
        command = self._spec.command
        if self._spec.standby_after_s is None or callable(command) or time.monotonic() < self._due_at:
            return
        if self._process is None:
            self._due_at = time.monotonic() + _RETRY_S
            with contextlib.suppress(OSError, ChildFailed):  # no memory for a second one is no reason to fail
                self._process = SupervisedProcess(self._spec, command, ahead=True)
        elif not _is_alive(self._process):
            self._process.let_go()
            self._process = None

    def take(self) -> SupervisedProcess | None:
        """The waiting process, from now on the caller's; None when there is none alive."""
        process, self._process = self._process, None
        self._due_at = time.monotonic() + (self._spec.standby_after_s or 0.0)
        if process is None or _is_alive(process):
            return process
        process.let_go()
        return None

    def living(self) -> list[SupervisedProcess]:
        """The waiting process, if there is one."""
        return [] if self._process is None else [self._process]


def _is_alive(process: SupervisedProcess) -> bool:
    """Its supervisor only waits for the id, and notices nothing before."""
    return supervisor.is_alive(process.pid, process.started)
