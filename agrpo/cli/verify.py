"""`agrpo verify RUN`: does the ledger hold?"""

import dataclasses
import json

from agrpo.cli.stores import opened
from agrpo.launch.exits import DONE, FAILED
from agrpo.store.verify import Verification, verify


def print_verification(store_url: str | None, run_id: str, as_json: bool) -> int:
    """One line when everything holds, else the offending rows; the exit code."""
    with opened(store_url) as store:
        found = verify(store, run_id)
    if as_json:
        print(json.dumps({**dataclasses.asdict(found), "holds": found.holds}, default=str))
    else:
        print("\n".join(_lines(found)))
    return DONE if found.holds else FAILED


def _lines(found: Verification) -> list[str]:
    seen = (
        f"{found.num_groups} groups, {found.num_samples} samples, {found.num_steps} steps, "
        f"{found.num_turns} turns with {found.num_tokens} tokens"
    )
    if found.holds:
        return [f"{found.run_id}: every check holds ({seen})"]
    rows = [f"  {problem.check}: {problem.says}: {_values(problem.row)}" for problem in found.problems]
    return [f"{found.run_id}: {len(rows)} rows do not hold ({seen})", *rows]


def _values(row: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items())
