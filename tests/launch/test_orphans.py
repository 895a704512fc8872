"""What stands under torchrun: a child of a child of the supervisor, in a session of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agrpo.launch import supervisor
from tests.worlds.processes import eventually, is_running, pids_in

RANK = """
import os, sys, time
from agrpo.launch.orphans import end_with_parent
os.setsid()
if sys.argv[2:] == ["late"]:
    while os.getppid() == int(sys.argv[1]): time.sleep(0.01)
end_with_parent()
open("pids", "a").write(f"{os.getpid()}\\n")
time.sleep(60)
"""
TORCHRUN = """
import os, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "rank.py", str(os.getpid()), *sys.argv[1:]])
open("started", "w").write(f"{os.getpid()} {rank.pid}")
time.sleep(60)
"""


@pytest.mark.parametrize("when", [(), ("late",)])
def test_a_rank_ends_when_torchrun_and_its_supervisor_are_killed(tmp_path: Path, when: tuple[str, ...]) -> None:
    """Also one that was still importing then."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "torchrun.py").write_text(TORCHRUN)
    command = [sys.executable, "-I", "-S", supervisor.__file__, "--", sys.executable, "torchrun.py", *when]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=tmp_path, env=env)
    assert guard.stdin is not None
    guard.stdin.write(b"1\n")
    guard.stdin.flush()
    eventually(lambda: len(pids_in(tmp_path / "started")) == 2)
    torchrun, rank = pids_in(tmp_path / "started")
    if not when:
        eventually((tmp_path / "pids").exists)
    guard.send_signal(signal.SIGKILL)
    guard.wait()
    eventually(lambda: not is_running(torchrun) and not is_running(rank), within_s=5)
    assert when == () or not (tmp_path / "pids").exists()
