"""Whatever is wrong with what a person gave: one line, exit 2, nothing started and nothing left."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agrpo.store import Store, leases, runs, steps
from tests.worlds.tiny_run import AGRPO

MODULE = """
def rows():
    return [{"prompt": [{"role": "user", "content": "1"}], "answer": 1}]

def bare():
    return [{"prompt": "1 + 1", "answer": 2}]

def reward(completions, **columns):
    return [0.0 for _ in completions]

short = lambda completions, **columns: [0.0 for _ in completions]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which `agrpo train run.yaml` would start a run."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "noprompt.jsonl").write_text('{"question": "1 + 1", "answer": 2}\n')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text("{broken\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    content: dict[str, Any] = {"name": "x", "model": {"path": "./model"}, "data": {"rows": "mine.py:rows"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content | {"rewards": ["mine.py:reward"]}))
    return tmp_path


CASES = {
    "missing model": (["model.path=./gone"], "model.path: gone holds no saved model"),
    "no prompt": (["data={path: noprompt.jsonl}"], "has no 'prompt' (its columns: question, answer)"),
    "no conversation": (["data.rows=mine.py:bare"], "has prompt '1 + 1'; expected a conversation"),
    "no such data": (["data={path: gone.jsonl}"], "data.path: gone.jsonl"),
    "no rows": (["data={path: empty.jsonl}"], "empty.jsonl (split train) cannot be read: it has no rows"),
    "no JSON": (["data={path: broken.jsonl}"], "cannot be read: JSON parse error"),
    "lambda": (["rewards=[mine.py:short]"], "'mine.py:short' is a lambda"),
    "mistyped reward": (["rewards=[mine.py:rewad]"], "did you mean 'reward'?"),
    "unknown key": (["trainer.learnin_rate=1"], "unknown key 'learnin_rate'; did you mean 'learning_rate'?"),
    "wrong value": (["trainer.num_generations=1"], "trainer.num_generations: 1 will not do"),
    "absent GPU": (["trainer.gpus=[7]"], "asks for GPU 7, this machine has"),
    "ports are ours": (["servers.args=[--port=8000]"], "--port=8000 is chosen by agrpo"),
    "no folder": (["output=run.yaml"], "output: run.yaml/x cannot be written (Not a directory)"),
    "read-only store": (["store.url=sqlite:////proc/agrpo/agrpo.db"], "cannot be written"),
    "no address": (["store.url=nonsense"], "store URL 'nonsense' is no database URL"),
    "no database": (["store.url=mysql://here/agrpo"], "only sqlite and postgresql can hold runs"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_exit_2(case: str, folder: Path) -> None:
    overrides, said = CASES[case]
    before = set(folder.rglob("*"))
    options = [part for override in overrides for part in ("--set", override)]
    ended = subprocess.run(
        [AGRPO, "train", "run.yaml", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PREFECT_HOME": str(folder / "prefect"), "AGRPO_DATABASE_URL": ""},
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("agrpo: ")
    assert said in line
    assert {path for path in folder.rglob("*") if "__pycache__" not in str(path)} == before


def test_a_name_that_other_settings_have_taken_is_refused_before_anything_starts(folder: Path) -> None:
    store = Store.open(f"sqlite:///{folder}/runs/agrpo.db")
    store.migrate()
    runs.create_run(store, "x", {"name": "x"}, "another hash", str(folder))
    steps.record(leases.acquire(store, "x", leases.this_process()), 1, [], 0)  # it has trained
    ended = subprocess.run([AGRPO, "train", "run.yaml"], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "was started with other settings" in ended.stderr
    assert runs.get_run(store, "x").token == 1


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    program = (
        "import socket, sys\n"
        "from flows.cli import main\n"
        "taken = socket.socket(); taken.bind(('127.0.0.1', 0)); taken.listen()\n"
        "sys.argv = ['agrpo', 'ui', '--port', str(taken.getsockname()[1])]\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2
    assert "is in use; if that is Prefect, open" in ended.stderr
