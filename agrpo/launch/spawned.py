"""A child that runs one of our functions: multiprocessing's spawn, guarded like every other child.

A plain script hands its reward functions to the rollout worker this way, because only spawn can carry them.
"""

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from agrpo.launch import exits, supervisor
from agrpo.launch.child import TERMINATION_S, ChildSpec, open_supervisor


def leave_reimported_script() -> None:
    """End this process when it is a child of ours that imports the user's script and has run into its training.

    spawn imports the script in the child to find the functions in it. Without a guard that starts everything again.
    """
    try:
        multiprocessing.spawn.get_preparation_data("check")
    except RuntimeError:
        exits.leave(
            exits.BAD_INPUT,
            "the script starts its training when another process imports it, and the rollout worker has to: put the "
            'training under `if __name__ == "__main__":`',
        )


class SpawnedProcess:
    """A picklable function of the process id in a process of its own, guarded by a supervisor."""

    def __init__(self, spec: ChildSpec, target: Callable[[int], None]) -> None:
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        arguments = (theirs, target, spec.log_path.absolute(), dict(spec.env), spec.cwd)
        # Not a daemon: those may not start processes, and reward functions run in a pool of them.
        self._process = context.Process(target=_body, args=arguments, name=spec.name)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        stat = supervisor.read_stat(self.pid)
        self.started = stat.started if stat else -1
        self._guard = open_supervisor(["--guard", str(self.pid), "--kill-after", str(TERMINATION_S)])

    def release(self, process_id: int) -> None:
        """Send the id, which the function waits for."""
        with contextlib.suppress(BrokenPipeError):
            self._channel.send(process_id)

    def has_ended(self) -> bool:
        """The process and its guard, which leaves when nothing of the group is left."""
        guard = self._guard.poll()
        if guard is not None and guard < 0:
            supervisor.kill_group(self.pid, self.started)
        return self._process.exitcode is not None and guard is not None

    @property
    def exit_code(self) -> int | None:
        """As multiprocessing saw it."""
        return self._process.exitcode

    def terminate(self) -> None:
        """The guard's SIGTERM is the order to end the group."""
        self._guard.terminate()

    def let_go(self) -> None:
        """The guard ends a group without an owner."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()


def _body(
    channel: Connection, target: Callable[[int], None], log_path: Path, env: Mapping[str, str], cwd: Path | None
) -> None:
    os.setpgid(0, 0)
    os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        process_id = channel.recv()
    except EOFError:  # the launcher died before it had registered us
        return
    exits.run(lambda: target(process_id))
