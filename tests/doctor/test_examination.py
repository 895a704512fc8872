"""What is said of a run file: also of its data, and of modules that cannot be imported."""

from pathlib import Path

import pytest

from agrpo.doctor.examination import examine
from agrpo.doctor.finding import Finding
from agrpo.runfile import RunFile, parse
from agrpo.store import Store, leases, runs, steps

MODULE = """
import os

KEY = os.environ["DOCTORS_KEY"]

def rows():
    return [{"prompt": "1 + 1"}]

def reward(completions, **columns):
    return [0.0]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFile:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DOCTORS_KEY", raising=False)
    (tmp_path / "examined.py").write_text(MODULE)
    (tmp_path / "config.json").write_text("{}")
    given = {"name": "x", "model": {"path": str(tmp_path)}, "servers": {"urls": ["http://127.0.0.1:1"]}}
    named = {"data": {"rows": f"{tmp_path}/examined.py:rows"}, "rewards": [f"{tmp_path}/examined.py:reward"]}
    places = {"store": {"url": f"sqlite:///{tmp_path}/agrpo.db"}, "output": str(tmp_path)}
    return parse({**given, **named, **places}, "test")


def last(run: RunFile, variable: str | None = None) -> Finding:
    """What is said of the run file, whose secret is in that environment variable."""

    def beforehand(_: RunFile) -> None:
        if variable is not None:
            monkeypatch.setenv(variable, "secret")

    with pytest.MonkeyPatch.context() as monkeypatch:
        return list(examine(run, run.store_url, beforehand))[-1]


def test_a_module_that_raises_is_a_finding_and_one_with_its_secret_is_imported(run: RunFile) -> None:
    found = last(run)
    assert (found.about, found.level) == ("run file", "problem")
    assert "raised KeyError: 'DOCTORS_KEY'" in found.says
    assert "expected a conversation" in last(run, "DOCTORS_KEY").says


def test_a_name_that_other_settings_have_taken_is_a_problem(run: RunFile) -> None:
    store = Store.open(run.store_url)
    store.migrate()
    runs.create_run(store, "x", {"name": "x"}, "another hash", "runs/x")
    steps.record(leases.acquire(store, "x", leases.this_process()), 1, [], 0)
    assert "was started with other settings" in last(run, "DOCTORS_KEY").says
    store.close()


def test_gpus_named_otherwise_are_a_finding(run: RunFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c")
    found = [one for one in examine(run, run.store_url, lambda _: None) if one.about == "gpus"]
    assert [one.level for one in found] == ["problem"]
