"""What a kill costs, and what keeping everything costs: `python -m benchmarks.durability --json` (about ten minutes).

Real processes, a real SQLite store, a tiny model and a server of made-up tokens, all made by the script. `--only` runs
some of its parts: kills, restarts, store, large. Progress goes to stderr. It needs a quiet machine: most of it is time.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.durable import large_store, store_cost
from benchmarks.durable.page import write_page
from benchmarks.durable.restarts import restarts
from tests.chaos.many import kill_many

SEED = 11


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Finished groups lost, groups trained twice and weights that differ after so many kills."""
    found = kill_many(options.kills, SEED, say)
    for problem in found.problems:
        say(str(problem))
    return {
        "kills": found.killed.total(),
        "finished_groups_lost": found.num_lost,
        "groups_trained_twice": found.num_twice,
        "weight_mismatches": found.num_mismatches,
        "steps_compared": len(found.replay.checks),
        "ledger_problems": len(found.problems),
    }


def restart_times(options: argparse.Namespace) -> dict[str, Any]:
    """Medians, with every single time."""
    measured = restarts(options.times, say)
    medians = {f"{name}_restart_s": statistics.median(seconds) for name, seconds in measured.items()}
    return {**medians, **{f"{name}_restart_s_all": seconds for name, seconds in measured.items()}}


def store(options: argparse.Namespace) -> dict[str, Any]:
    """Overhead, commit waits and bytes."""
    return store_cost.store_cost(options.run_s, options.runs, say)


def large(options: argparse.Namespace) -> dict[str, Any]:
    """Commands on a large store."""
    return {"stored_tokens": options.tokens, **large_store.large_store(options.tokens, say)}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "kills": kills,
    "restarts": restart_times,
    "store": store,
    "large": large,
}


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durability", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run; all")
    parser.add_argument("--kills", type=int, default=6, help="`make chaos N=200` is the place for many (%(default)s)")
    parser.add_argument("--times", type=int, default=10, help="restarts of each kind (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs with and without payloads (%(default)s each)")
    parser.add_argument("--run-s", type=float, default=12.0, help="seconds of each of them (%(default)s)")
    parser.add_argument("--tokens", type=int, default=10_000_000, help="tokens of the large store (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--page", action="store_true", help="write all of it into docs/durability-results.md")
    options = parser.parse_args()
    if options.page and options.only != list(PARTS):
        parser.error("--page needs every part")
    begun, load = time.monotonic(), os.getloadavg()[0]
    found: dict[str, Any] = {}
    for name in options.only:
        say(f"[{name}] after {time.monotonic() - begun:.0f} s")
        found |= PARTS[name](options)
    if options.page:
        command = " ".join(["python -m benchmarks.durability", *sys.argv[1:]])
        write_page(found, command, time.monotonic() - begun, load)
    print(json.dumps(found) if options.json else "\n".join(f"{name:28} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
