"""What only shows once a run works: one message, exit 2, and nothing left."""

import json
from pathlib import Path
from typing import Any

import pytest

from agrpo.store import runs
from end_to_end.prefect_world import PrefectWorld

REWARDS = """
def one(completions, **columns):
    return [1.0]


def nan(completions, **columns):
    return [float("nan") for _ in completions]
"""
SERVER = """#!/bin/sh
echo "loading the model" >&2
echo "ValueError: no memory for the KV cache" >&2
exit 1
"""


def broken_server(folder: Path) -> dict[str, Any]:
    """An interpreter that is none: whatever it is to run, it complains and ends."""
    (folder / "python").write_text(SERVER)
    (folder / "python").chmod(0o755)
    return {"servers": {"python": str(folder / "python")}}


def broken_reward(name: str, folder: Path) -> dict[str, Any]:
    (folder / "bad_rewards.py").write_text(REWARDS)
    return {"rewards": [f"{folder}/bad_rewards.py:{name}"]}


CASES = {
    "length": (lambda folder: broken_reward("one", folder), "'one' returned 1 values for 4 completions; return one"),
    "nan": (lambda folder: broken_reward("nan", folder), "'nan' returned nan for completion 0; return a finite"),
    "server": (broken_server, "ValueError: no memory for the KV cache"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_cannot_work_ends_with_its_reason(world: PrefectWorld, tmp_path: Path, case: str) -> None:
    change, said = CASES[case]
    name = f"bad-{case}"
    (tmp_path / "run.json").write_text(json.dumps(world.config(name, max_steps=4) | change(tmp_path)))
    train = world.start("flows", "train", str(tmp_path / "run.json"))
    assert train.wait(240) == 2
    assert said in world.log(train)
    assert "Traceback" not in world.log(train)
    assert world.alive(name) == []
    assert (runs.get_run(world.store, name).status, world.step(name)) == ("failed", 0)
