"""Ctrl-C at the command line."""

import subprocess
import sys

PROGRAM = """
import os, signal
from flows import console
console._listen_for_stops()
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    print("the processes of the run were ended")
console._STOPPING_S = 0.0
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_second_ctrl_c_does_not_break_off_the_stopping_but_a_late_one_is_heard() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.stdout == "the processes of the run were ended\n"
    assert ended.stderr.endswith("KeyboardInterrupt\n")
