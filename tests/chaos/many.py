"""`make chaos N=200`: many kills at random times, and a page on what came of them: `python -m tests.chaos.many N`."""

import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
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
    num_diverged: int
    """Events that say a resumed trainer, going over recorded steps, made other weights than before the kill."""
    seconds: float

    @property
    def num_twice(self) -> int:
        """Samples that were trained twice, or in another step than recorded."""
        return sum(problem.check in ("trained_once", "step_members") for problem in self.problems)

    @property
    def num_mismatches(self) -> int:
        """Steps that made other weights when they were made again: among the kills, or from the ledger afterwards."""
        return self.num_diverged + sum(not check.is_equal for check in self.replay.checks)

    @property
    def is_well(self) -> bool:
        """Whether nothing was lost."""
        return not (self.problems or self.num_lost or self.num_mismatches) and self.replay.verdict == "equal"


def kill_many(num_kills: int, seed: int, say: Callable[[str], None]) -> Aftermath:
    """A run whose processes are killed so often; then its ledger is verified, and every step made again."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, KillRun(Path(folder), num_rows=100_000) as run:
        run.start()
        run.wait("the first process", lambda: bool(run.alive()))
        killed = Counter[str]()
        for name in run.kill_many(num_kills, Random(seed), PAUSE_S, AT_WORK):
            killed[name] += 1
            say(f"kill {killed.total()} of {num_kills}: {name}, in step {run.step() + 1}")
        assert killed.total() == num_kills, f"the run came to its end after {killed.total()} kills\n{run.log()}"
        goal = run.step() + STEPS_AHEAD
        run.wait(f"step {goal}", lambda: run.step() >= goal)
        runs.request(run.store, NAME, "stop")
        run.wait("the stop", lambda: run.launcher is not None and run.launcher.poll() is not None)
        found, summary = verify(run.store, NAME), runs.summary(run.store, NAME)
        say(f"making {run.step()} steps again from the ledger")
        with contextlib.chdir(folder):  # the run's file names its model and rows from there
            again = replay_run(run.store, NAME, run.step())
        lost, diverged = len(run.lost_groups()), len(run.diverged())
        return Aftermath(killed, summary, again, found.problems, lost, diverged, time.monotonic() - begun)


def main(num_kills: int, seed: int) -> int:
    """Kill, look, write the page; 0 when nothing was lost."""
    found = kill_many(num_kills, seed, lambda line: print(line, file=sys.stderr, flush=True))
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
    day = time.strftime("%Y-%m-%d")
    return f"""# What came of {killed.total()} kills

Made by `make chaos N={killed.total()}` (`tests/chaos/many.py`) on {day}, in {found.seconds / 60:.0f} minutes.

A run of real processes on CPUs, with a tiny model and a SQLite store. Each kill is a SIGKILL for one living process,
chosen at random, at a random time: while it loads, works, writes or recovers.

The server is given to the run by its address. It speaks vLLM's protocol, but makes up its tokens and does not read the
weights; when it is killed, the test starts it again. Servers that a run starts itself, and the next attempt takes over,
are no victims here: `tests/launch/test_adopt.py` kills around those. Power loss, full disks, frozen processes, jumping
clocks and PostgreSQL have tests of their own in `tests/chaos`.

| | |
|---|---|
| finished groups lost | {found.num_lost} |
| samples trained twice, or in another step than recorded | {found.num_twice} |
| other rows of the ledger that do not hold | {len(found.problems) - found.num_twice} |
| steps made again from the ledger without interruption | {len(found.replay.checks)} |
| of these with other weights than the run had | {found.num_mismatches - found.num_diverged} |
| events that say a resumed trainer made other weights of a recorded step | {found.num_diverged} |
| verdict of `agrpo replay` on the whole run | {found.replay.verdict} |
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
