"""`agrpo rewards`."""

import json
import subprocess
import sys

import pytest

from agrpo import rewards
from agrpo.cli.rewards import print_rewards


def test_every_reward_is_listed_with_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rewards(as_json=True)
    listed = {reward["name"]: reward for reward in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(rewards.__all__) - {"isolated"}
    assert listed["accuracy_reward"]["columns"] == ["solution"]
    assert listed["get_cosine_scaled_reward"]["columns"] == ["solution"]
    assert "max_len: int = 1000" in listed["get_cosine_scaled_reward"]["parameters"]
    assert all(reward["about"] for reward in listed.values())
    print_rewards(as_json=False)
    assert "get_repetition_penalty_reward" in capsys.readouterr().out


def test_listing_rewards_loads_nothing_heavy() -> None:
    program = "import sys; from agrpo.cli.rewards import print_rewards; print_rewards(True); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not {"torch", "transformers", "sympy"} & set(done.stdout.split())
