"""The benchmark's part of docs/durability-results.md: what was asked, what was found, on which machine."""

import os
import platform
import time
from typing import Any

from tests.chaos.many import NUMBERS, PAGE

Found = dict[str, Any]


def write_page(found: Found, command: str, seconds: float, load: float) -> None:
    """Replace that part of the page; what `make chaos` wrote stays."""
    before = PAGE.read_text().partition(NUMBERS)[0].rstrip() + "\n\n" if PAGE.exists() else ""
    PAGE.write_text(before + section(found, command, seconds, load))


def section(found: Found, command: str, seconds: float, load: float) -> str:
    """A table of every number, and the single restarts."""
    rows = "\n".join(f"| {name} | {asked} | {value} |" for name, asked, value in _rows(found))
    singles = "\n".join(
        f"- {words}: {', '.join(f'{one:.2f}' for one in found[f'{name}_all'])} s" for name, words in _RESTARTS.items()
    )
    runs = found["store_overhead_runs_s"]
    return f"""{NUMBERS}

Made by `{command}` in {seconds / 60:.0f} minutes on {time.strftime("%Y-%m-%d")}:
{_machine()}, load {load:.1f} before it.

| | asked | found |
|---|---|---|
{rows}

Every single restart, with the second that `limits.backoff_s` waits by default:

{singles}

Wall times of the runs at {found["tokens_per_s"]:.0f} tokens/s: with payloads {_list(runs["full"])} s, without
{_list(runs["stubbed"])} s.
"""


_RESTARTS = {
    "trainer_restart_s": "SIGKILL of the trainer to the end of the first replayed step",
    "worker_restart_s": "SIGKILL of the worker to the first new group",
    "worker_standby_restart_s": "the same with `limits.standby`",
}


def _rows(found: Found) -> list[tuple[str, str, str]]:
    kills = f"over {found['kills']} kills"
    medians = {name: f"{found[name]:.1f} s" for name in _RESTARTS}
    commands = {name: f"{found[name]:.1f} s" for name in ("show_s", "verify_s", "resume_to_first_step_s")}
    tokens = f"{found['stored_tokens'] / 1e6:g} million stored tokens"
    return [
        (f"finished groups lost {kills}", "0", str(found["finished_groups_lost"])),
        (f"groups trained twice {kills}", "0", str(found["groups_trained_twice"])),
        (f"steps with other weights, of {found['steps_compared']}", "0", str(found["weight_mismatches"])),
        (f"{_RESTARTS['trainer_restart_s']} (median)", "<= 15 s", medians["trainer_restart_s"]),
        (f"{_RESTARTS['worker_restart_s']} (median)", "<= 12 s", medians["worker_restart_s"]),
        (f"{_RESTARTS['worker_standby_restart_s']} (median)", "<= 5 s", medians["worker_standby_restart_s"]),
        ("wall time that payloads cost", "< 1 %", f"{100 * found['store_overhead']:.2f} %"),
        (f"SQLite commit, p99 of {found['num_commits']}", "<= 20 ms", f"{found['commit_wait_p99_ms']:.1f} ms"),
        ("bytes per token, top-8 log-probabilities included", "reported", f"{found['bytes_per_token']:.0f}"),
        (f"`agrpo show` on {tokens}", "< 10 s", commands["show_s"]),
        (f"`agrpo verify` on {tokens}", "< 10 s", commands["verify_s"]),
        (f"launcher's start to the first new step on {tokens}", "< 10 s", commands["resume_to_first_step_s"]),
    ]


def _machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({platform.machine()}), {memory_gb:.0f} GB, Python {platform.python_version()}"


def _list(seconds: list[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in seconds)
