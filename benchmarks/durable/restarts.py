"""How long until a killed process has replaced itself: a run of real processes, a tiny model, a warm server."""

import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agrpo.launch.supervisor import read_stat
from agrpo.store import checkpoints, processes
from tests.worlds.kill_run import NAME, KillRun

Say = Callable[[str], None]

LIMITS = {"backoff_s": 1.0, "steady_after_s": 0.0}
"""Every kill is the first of its run: the pause before the restart is what a run file that says nothing has."""
SAVE_STEPS = 20
_STEP = re.compile(r"step (\d+)")
LOADED_S = 1.0
"""A process that has used no processor for so long has loaded what it loads."""


def restarts(times: int, say: Say) -> dict[str, list[float]]:
    """Seconds from SIGKILL of the trainer to the end of the first step that it makes again, and of the worker to the
    first group that its successor commits, without and with a standby."""
    found: dict[str, list[float]] = {"trainer": [], "worker": [], "worker_standby": []}

    def note(what: str, seconds: float) -> None:
        found[what].append(seconds)
        say(f"{what}: {seconds:.2f} s")

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _run(Path(folder), standby=False) as run:
        for _ in range(times):
            note("worker", _replace_worker(run, standby=False))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _run(Path(folder), standby=True) as run:
        for _ in range(times):
            note("worker_standby", _replace_worker(run, standby=True))
            # The next standby is not yet due: nothing else loads meanwhile.
            note("trainer", _replace_trainer(run))
    return found


def _run(folder: Path, standby: bool) -> KillRun:
    limits = {**LIMITS, "standby": standby}
    return KillRun(folder, num_rows=100_000, limits=limits, save_steps=SAVE_STEPS)


def _replace_trainer(run: KillRun) -> float:
    """The first step after the checkpoint is made again when the second one is begun."""
    _go_on(run)
    run.wait("steps to make again", lambda: run.step() - _checkpoint(run) in range(3, SAVE_STEPS // 2))
    again = _checkpoint(run) + 1
    killed_at = time.time()
    run.kill("trainer")
    begun = [0.0]

    def second_step_is_begun() -> bool:
        begun[0] = _begun(run, again + 1)
        return begun[0] > killed_at

    run.wait(f"step {again}", second_step_is_begun)
    return begun[0] - killed_at


def _replace_worker(run: KillRun, standby: bool) -> float:
    _go_on(run)
    goal = run.step() + 3
    run.wait(f"step {goal}", lambda: run.step() >= goal)
    if standby:
        run.wait("the standby", lambda: _waits(_standby(run)))
    killed_at = time.time()
    run.kill("worker")
    run.wait("a group", lambda: _first_ready(run, killed_at) is not None)
    return (_first_ready(run, killed_at) or 0.0) - killed_at


def _go_on(run: KillRun) -> None:
    if run.launcher is None:
        run.start()
    run.wait("all processes", lambda: {"worker", "trainer"} <= run.alive().keys())


def _checkpoint(run: KillRun) -> int:
    cursor = checkpoints.cursor(run.store, NAME)
    return cursor.step if cursor else 1 << 31


def _begun(run: KillRun, step: int) -> float:
    """When this step, or a later one, was begun last."""
    for beat in processes.heartbeats(run.store, NAME):
        said = _STEP.match(beat.detail or "")
        if beat.loop == "train" and said and int(said[1]) >= step:
            return beat.at
    return 0.0


def _first_ready(run: KillRun, after: float) -> float | None:
    """When the first group was committed since; asked too often to load all of them."""
    query = "SELECT min(ready_at) FROM groups WHERE run_id = ? AND ready_at > ?"
    with run.store.read() as connection:
        return connection.exec_driver_sql(query, (NAME, after)).scalar()


def _standby(run: KillRun) -> int | None:
    """Pid of the waiting process: it is told its id only when it is needed, and the worker may have been one."""
    for pid in set(run.processes()) - set(run.alive().values()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"--process-id\0-\0"):
                return pid
    return None


def _waits(pid: int | None) -> bool:
    if pid is None or read_stat(pid) is None:
        return False
    before = _cpu_ticks(pid)
    time.sleep(LOADED_S)
    return before == _cpu_ticks(pid) > os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
