import subprocess
import sys

import pytest

from agrpo.launch.exits import Verdict, describe, verdict


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, Verdict.DONE),
        (1, Verdict.RESTART),
        (75, Verdict.RESTART),
        (-9, Verdict.RESTART),
        (None, Verdict.RESTART),
        (2, Verdict.GIVE_UP),
        (70, Verdict.GIVE_UP),
        (127, Verdict.GIVE_UP),
        (76, Verdict.LEASE_LOST),
    ],
)
def test_verdicts(code: int | None, expected: Verdict) -> None:
    assert verdict(code) is expected


def test_exits_are_described_in_words() -> None:
    assert describe(-15) == "was ended by signal 15"
    assert describe(70) == "ended with exit code 70 (a bug)"
    assert describe(3) == "ended with exit code 3"
    assert describe(None) == "ended"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise LeaseLost('attempt 2 has it')", 76, "lease lost: attempt 2 has it"),
        ("raise ServerOutage('no answer')", 75, "outage: no answer"),
        ("raise BadInput('no such file')", 2, "cannot go on: no such file"),
        ("{}['key']", 70, "KeyError: 'key'"),
        ("raise SystemExit(5)", 5, ""),
    ],
)
def test_a_body_leaves_with_the_code_for_what_happened(body: str, code: int, said: str) -> None:
    script = f"from agrpo.errors import *\nfrom agrpo.launch import exits\ndef main():\n    {body}\nexits.run(main)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (code, True)
