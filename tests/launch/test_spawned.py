import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agrpo.errors import ChildFailed, ServerOutage
from agrpo.launch.child import ChildSpec
from agrpo.launch.launcher import Launcher
from agrpo.store import Attempt, processes
from tests.worlds.processes import eventually, is_running, pids_in, wait_for


def say(path: Path, process_id: int) -> None:
    print(f"{os.environ['COLOUR']} {process_id}", flush=True)
    path.write_text(f"{os.getpid()} {os.getpgid(0)}")


def linger(path: Path, process_id: int) -> None:
    child = subprocess.Popen(["sleep", "60"])
    path.write_text(f"{os.getpid()} {child.pid}")
    time.sleep(60)


def ignore(path: Path, process_id: int) -> None:
    """Ignore SIGTERM, with a child that does so too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    linger(path, process_id)


def stumble(path: Path, process_id: int) -> None:
    with path.open("a") as file:
        file.write(f"{process_id}\n")
    if len(path.read_text().split()) < 2:
        raise ServerOutage("the server does not answer")


def break_down(process_id: int) -> None:
    raise ZeroDivisionError("a bug")


def child(target: functools.partial[None] | object, log: str = "worker.log") -> ChildSpec:
    return ChildSpec("worker", 0, target, Path(log), env={"COLOUR": "red"}, backoff_s=0.05)  # type: ignore[arg-type]


def test_a_function_runs_in_a_process_group_of_its_own(launcher: Launcher, tmp_path: Path) -> None:
    process_id = launcher.start(child(functools.partial(say, tmp_path / "said")))
    wait_for(launcher, "worker", within_s=30)
    pid, pgid = pids_in(tmp_path / "said")
    assert pid == pgid == processes.all(launcher.attempt.store, "r1")[0].pid
    assert (tmp_path / "worker.log").read_text() == f"red {process_id}\n"


def test_an_outage_in_a_function_is_retried_and_a_bug_is_not(attempt: Attempt, tmp_path: Path) -> None:
    with Launcher(attempt, tmp_path) as launcher:
        launcher.start(child(functools.partial(stumble, tmp_path / "tries")))
        wait_for(launcher, "worker", within_s=30)
        assert pids_in(tmp_path / "tries") == [record.id for record in processes.all(attempt.store, "r1")]
    with Launcher(attempt, tmp_path) as launcher:
        launcher.start(child(break_down))
        with pytest.raises(ChildFailed, match="ZeroDivisionError: a bug"):
            wait_for(launcher, "worker", within_s=30)


def test_stop_ends_the_whole_group(attempt: Attempt, tmp_path: Path) -> None:
    with Launcher(attempt, tmp_path) as launcher:
        launcher.start(child(functools.partial(ignore, tmp_path / "pids")))
        eventually(lambda: len(pids_in(tmp_path / "pids")) == 2, within_s=30)
        launcher.stop(timeout_s=0.5)
    assert not any(map(is_running, pids_in(tmp_path / "pids")))


SCRIPT = """
import functools, time
from pathlib import Path
from agrpo.launch.attach import attach
from agrpo.launch.launcher import Launcher
from agrpo.store import Store
from tests.launch.test_spawned import child, say, linger
from tests.worlds.processes import wait_for

{guard}
    folder = Path({folder!r})
    attempt = attach(Store.open({url!r}), "r2", {{}}, "hash", folder).attempt
    with Launcher(attempt, folder) as launcher:
        launcher.start(child(functools.partial({target}, folder / "pids")))
        wait_for(launcher, "worker", within_s=60)
"""


def script(attempt: Attempt, folder: Path, target: str, guard: str) -> subprocess.Popen[str]:
    path = folder / "script.py"
    path.write_text(SCRIPT.format(folder=str(folder), url=attempt.store.url, target=target, guard=guard))
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, path], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    )


def test_a_killed_script_takes_its_worker_with_it(attempt: Attempt, tmp_path: Path) -> None:
    process = script(attempt, tmp_path, "say", guard='if __name__ == "__main__":')
    assert process.communicate(timeout=60)[1] == ""
    process = script(attempt, tmp_path, "linger", guard='if __name__ == "__main__":')
    (tmp_path / "pids").unlink()
    eventually(lambda: len(pids_in(tmp_path / "pids")) == 2, within_s=30)
    process.kill()
    process.communicate()
    eventually(lambda: not any(map(is_running, pids_in(tmp_path / "pids"))), within_s=5)


def test_a_script_without_a_main_guard_is_told_what_to_do(attempt: Attempt, tmp_path: Path) -> None:
    process = script(attempt, tmp_path, "say", guard="if True:")
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert stderr.count('if __name__ == "__main__":') == 1
    assert "worker 0 ended with exit code 2" in stderr
