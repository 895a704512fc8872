"""A checkpoint is answered and scored in a process of its own, here through a server of made-up tokens."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agrpo.cli.evaluate import print_evaluation
from agrpo.errors import BadInput
from agrpo.inference.client import is_healthy
from agrpo.inference.command import free_port
from agrpo.runfile import config_hash, load, stored_config
from agrpo.session.evaluating import evaluate_run, lone_server, to_evaluate
from agrpo.session.placement import placement
from agrpo.settings import DataSettings
from agrpo.store import Store, evaluations, leases, runs, steps
from tests.worlds.kill_run import ROOT, KillRun
from tests.worlds.small_groups import name_checkpoint


@pytest.fixture
def url() -> Iterator[str]:
    """The address of the server."""
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "tests.worlds.token_server", str(port)], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not is_healthy(f"http://127.0.0.1:{port}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with a run of six prompts that has no checkpoint yet."""
    world = KillRun(tmp_path, num_rows=6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "rows", raising=False)  # each test has its own
    run = load(tmp_path / "run.yaml", ["evaluation={num_samples: 3, pass_reward: 0.5}"])
    runs.create_run(world.store, run.name, stored_config(run), config_hash(run), str(run.run_dir))
    return world.store


def test_a_machines_only_gpu_goes_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KillRun(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(BadInput, match=r"0 of the GPUs \[0\] are left for servers"):
        placement(load(tmp_path / "run.yaml", ["servers={urls: []}"]))
    for trainer in ("{}", "{gpus: [0]}"):
        run = load(tmp_path / "run.yaml", [f"trainer={trainer}"])
        assert lone_server(run, "checkpoint").env["CUDA_VISIBLE_DEVICES"] == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # the last one may be training
    assert lone_server(load(tmp_path / "run.yaml"), "checkpoint").env["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_model_gets_numbers_and_is_not_asked_twice(store: Store, url: str) -> None:
    run = to_evaluate(store, "killed")
    found = evaluate_run(store, run, step=0, url=url)
    assert found.values is not None
    assert (found.values["num_prompts"], found.values["num_samples"]) == (6, 3)
    reward = found.values["reward"]
    assert 0 <= reward["low"] <= reward["value"] <= reward["high"] <= 1
    assert found.values["pass@1"]["value"] <= found.values["pass@3"]["value"]
    assert {len(scores) for scores in evaluations.scores(store, found.id).values()} == {3}
    assert evaluate_run(store, run, step=0, url="http://127.0.0.1:1") == found
    others = evaluate_run(store, to_evaluate(store, "killed", DataSettings(rows="rows.py:rows", limit=2)), 0, url)
    assert others.values is not None and others.values["num_prompts"] == 2
    assert others.tasks != found.tasks


def test_a_step_without_a_checkpoint_is_one_line(store: Store, tmp_path: Path) -> None:
    run = to_evaluate(store, "killed")
    with pytest.raises(BadInput, match="has no checkpoint yet: wait for one, or take step 0"):
        evaluate_run(store, run)
    attempt = leases.acquire(store, "killed", leases.this_process())
    steps.record(attempt, 1, [], 0)
    steps.finish(attempt, 1, "digest", {})
    name_checkpoint(attempt, 1, str(tmp_path), "digest")
    with pytest.raises(BadInput, match="step 4: run 'killed' has no checkpoint of it; it has those of steps 0, 1"):
        evaluate_run(store, run, step=4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("gone.py:rows", "evaluation: 'gone.py:rows': no file gone.py"),
        ("gone.jsonl", "evaluation: data.path: gone.jsonl"),
    ],
)
def test_other_prompts_are_looked_at_before_a_server_is_started(store: Store, data: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        print_evaluation(store.url, "killed", 0, None, data, as_json=True, beforehand=lambda run: None)


@pytest.mark.parametrize("nowhere", ["http://127.0.0.1:1", "nonsense"])
def test_a_url_where_nobody_answers_is_one_line(store: Store, nowhere: str) -> None:
    with pytest.raises(BadInput, match=f"--url {nowhere}: nobody answers there"):
        evaluate_run(store, to_evaluate(store, "killed"), step=0, url=nowhere)
    assert evaluations.of_run(store, "killed") == []
