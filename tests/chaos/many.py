"""`make chaos N=200`: many kills at random times, and a page on what came of them: `python -m tests.chaos.many N`."""

import contextlib
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from agrpo.session.replays import replay_run
from agrpo.store import runs
from agrpo.store.verify import Problem, verify
from agrpo.trainer.replay_result import ReplayResult
from tests.worlds.kill_run import NAME, ROOT, KillRun

PAGE = ROOT / "docs" / "durability-results.md"
NUMBERS = "## Numbers"
"""The page's part that benchmarks/durability.py makes."""
PAUSE_S = 8.0
AT_WORK = 0.6
STEPS_AHEAD = 5


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What is left of a run whose processes were killed."""

    killed: Counter[str]
    """How often each kind of process was."""
    summary: runs.RunSummary
    replay: ReplayResult
    """Every step made again from the ledger."""
    problems: list[Problem]
    num_lost: int
    """Groups that were finished at a kill and are not what they were."""
    seconds: float

    @property
    def num_twice(self) -> int:
        """Samples that were trained twice, or in another step than recorded."""
        return sum(problem.check in ("trained_once", "step_members") for problem in self.problems)

    @property
    def num_mismatches(self) -> int:
        """Steps that make other weights from the ledger than they made among the kills."""
        return sum(not check.is_equal for check in self.replay.checks)

    @property
    def is_well(self) -> bool:
        """Whether nothing was lost."""
        return not self.problems and not self.num_lost and self.replay.verdict == "equal"


def kill_many(num_kills: int, seed: int) -> Aftermath:
    """A run whose processes are killed so often; then its ledger is verified, and every step made again."""
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
        with contextlib.chdir(folder):  # the run's file names its model and rows from there
            again = replay_run(run.store, NAME, run.step())
        return Aftermath(killed, summary, again, found.problems, len(run.lost_groups()), time.monotonic() - begun)


def main(num_kills: int, seed: int) -> int:
    """Kill, look, write the page; 0 when nothing was lost."""
    found = kill_many(num_kills, seed)
    page = _page(found)
    numbers = PAGE.read_text().partition(NUMBERS) if PAGE.exists() else ("", "", "")
    PAGE.write_text(page + ("\n" + NUMBERS + numbers[2] if numbers[1] else ""))
    print(page)
    for problem in found.problems:
        print(problem)
    return 0 if found.is_well else 1


def _page(found: Aftermath) -> str:
    killed, summary = found.killed, found.summary
    victims = "\n".join(f"| {name} | {number} |" for name, number in sorted(killed.items()))
    return f"""# What came of {killed.total()} kills

Made by `make chaos N={killed.total()}` (`tests/chaos/many.py`) in {found.seconds / 60:.0f} minutes: a run of
real processes with a tiny model, which were ended by SIGKILL at random times, while they loaded, worked, wrote and
recovered.

| | |
|---|---|
| finished groups lost | {found.num_lost} |
| samples trained twice, or in another step than recorded | {found.num_twice} |
| other rows of the ledger that do not hold | {len(found.problems) - found.num_twice} |
| steps made again from the ledger without interruption | {len(found.replay.checks)} |
| of these with other weights | {found.num_mismatches} |
| attempts of the launcher | {summary.attempts} |
| restarts of processes inside an attempt | {summary.restarts} |
| groups by status | {_counts(summary.groups)} |
| samples by status | {_counts(summary.samples)} |

| killed | times |
|---|---|
{victims}
"""


def _counts(by_status: dict[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in sorted(by_status.items()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), seed=7))
