"""`make chaos N=200`: many kills at random times, and a page on what came of them: `python -m tests.chaos.many N`."""

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from agrpo.session.replays import replay_run
from agrpo.store import runs
from agrpo.store.verify import verify
from agrpo.trainer.replay_result import ReplayResult
from tests.worlds.kill_run import NAME, ROOT, KillRun

PAGE = ROOT / "docs" / "durability-results.md"
PAUSE_S = 8.0
AT_WORK = 0.6
STEPS_AHEAD = 5


def main(num_kills: int, seed: int) -> int:
    """Kill, finish, verify, replay; 0 when nothing was lost."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, KillRun(Path(folder), num_rows=100_000) as run:
        run.start()
        run.wait("the first process", lambda: bool(run.alive()))
        killed = Counter(run.kill_many(num_kills, Random(seed), PAUSE_S, AT_WORK))
        goal = run.step() + STEPS_AHEAD
        run.wait(f"step {goal}", lambda: run.step() >= goal)
        runs.request(run.store, NAME, "stop")
        run.wait("the stop", lambda: run.launcher is not None and run.launcher.poll() is not None)
        found, summary = verify(run.store, NAME), runs.summary(run.store, NAME)
        os.chdir(folder)
        again = replay_run(run.store, NAME, run.step())
        lost = run.lost_groups()
        twice = [problem for problem in found.problems if problem.check in ("trained_once", "step_members")]
        page = _page(killed, summary, again, len(lost), len(twice), time.monotonic() - begun)
        PAGE.write_text(page)
        print(page)
        for problem in found.problems:
            print(problem)
    return 0 if found.holds and not lost and again.verdict == "equal" else 1


def _page(
    killed: Counter[str], summary: runs.RunSummary, again: ReplayResult, lost: int, twice: int, seconds: float
) -> str:
    mismatches = sum(not check.is_equal for check in again.checks)
    victims = "\n".join(f"| {name} | {number} |" for name, number in sorted(killed.items()))
    return f"""# What came of {killed.total()} kills

Made by `make chaos N={killed.total()}` (`tests/chaos/many.py`) in {seconds / 60:.0f} minutes: a run of
real processes with a tiny model, which were ended by SIGKILL at random times, while they loaded, worked, wrote and
recovered.

| | |
|---|---|
| finished groups lost | {lost} |
| samples trained twice, or in another step than recorded | {twice} |
| steps made again from the ledger without interruption | {len(again.checks)} |
| of these with other weights | {mismatches} |
| attempts of the launcher | {summary.attempts} |
| restarts of processes inside an attempt | {summary.restarts} |
| groups by status | {summary.groups} |
| samples by status | {summary.samples} |

| killed | times |
|---|---|
{victims}
"""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), seed=7))
