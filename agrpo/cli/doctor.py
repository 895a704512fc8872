"""`agrpo doctor`: what is in the way of a run, and what to do about it."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agrpo import runfile
from agrpo.doctor.examination import examine
from agrpo.doctor.finding import Finding
from agrpo.launch.exits import DONE, FAILED
from agrpo.runfile import RunFile
from agrpo.store import DEFAULT_URL

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def print_findings(run_file: Path | None, as_json: bool, beforehand: Callable[[RunFile], None]) -> int:
    """One line a finding as it comes, and what to do under it; the exit code. `beforehand` as in `examine`."""
    run = None if run_file is None else runfile.load(run_file)
    default = os.environ.get("AGRPO_DATABASE_URL") or DEFAULT_URL
    found = examine(run, default if run is None else run.store_url, beforehand)
    findings = list(found) if as_json else list(_printed(found))
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    return FAILED if any(finding.level == "problem" for finding in findings) else DONE


def _printed(findings: Iterator[Finding]) -> Iterator[Finding]:
    console = Console()
    for finding in findings:
        mark = (f"{finding.level:8}", _STYLES[finding.level])
        console.print(Text.assemble(mark, (f"{finding.about:14}", "bold"), finding.says), soft_wrap=True)
        if finding.do:
            console.print(f"        do: {finding.do}", highlight=False, markup=False, soft_wrap=True)
        yield finding
