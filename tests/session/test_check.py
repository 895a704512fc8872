"""What is found out before anything is started."""

import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from agrpo.errors import BadInput, OldSchema
from agrpo.runfile import config_hash, parse, stored_config
from agrpo.session.check import check_data, check_input, find_begun
from agrpo.store import Store, leases, runs

MODULE = """
def rows():
    return []

def stream():
    import datasets

    return datasets.IterableDataset.from_generator(question)

def question():
    yield {"prompt": [{"role": "user", "content": "1+1"}]}

def reward(completions, **columns):
    return [0.0 for _ in completions]

short = lambda completions, **columns: [0.0 for _ in completions]
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A run file's content that is fine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "checked", raising=False)
    (tmp_path / "checked.py").write_text(MODULE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    rows, rewards = {"rows": "checked.py:rows"}, ["checked.py:reward"]
    return {"name": "x", "model": {"path": "./model"}, "data": rows, "rewards": rewards}


def test_what_is_there_is_fine(given: dict[str, object]) -> None:
    check_input(parse(given, "test"))
    check_input(parse({**given, "model": {"path": "someone/model"}}, "test"))  # a Hub name cannot be checked


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": {"path": "./gone"}}, r"model.path: gone holds no saved model"),
        ({"model": {"path": "model/gone"}}, r"model.path: model/gone holds no saved model"),  # in a folder that is here
        ({"rewards": ["checked.py:rewad"]}, "did you mean 'reward'?"),
        ({"rewards": ["checked.py:short"]}, "is a lambda, which no other process can import"),
        ({"data": {"rows": "gone.py:rows"}}, "no file gone.py"),
        ({"trainer": {"training_arguments": {"adam_epsilom": 1e-6}}}, "did you mean 'adam_epsilon'?"),
        ({"trainer": {"training_arguments": {"zzz": 1}}}, "AsyncGRPOConfig has no such field: unknown key 'zzz'"),
        ({"trainer": {"config": "checked.py:reward"}}, "is no subclass of AsyncGRPOConfig"),
        ({"trainer": {"gpus": [5]}}, "asks for GPU 5, this machine has"),
    ],
)
def test_what_is_missing_is_one_line(given: dict[str, object], wrong: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_input(parse({**given, **wrong}, "test"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_hub_a_name_must_be_in_its_cache(
    given: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "cache" / "models--someone--kept"
    trainer = {"model_init_kwargs": {"cache_dir": str(tmp_path / "cache")}}
    for path in (cached / "refs" / "main", cached / "snapshots" / "abc" / "config.json"):
        path.parent.mkdir(parents=True)
        path.write_text("abc")
    check_input(parse({**given, "model": {"path": "someone/kept"}, "trainer": trainer}, "test"))
    with pytest.raises(BadInput, match=r"model.path: there is no folder tiny.*HF_HUB_OFFLINE"):
        check_input(parse({**given, "model": {"path": "tiny"}, "trainer": trainer}, "test"))


@pytest.mark.parametrize(
    ("output", "reason"), [("model/config.json", "Not a directory"), ("/proc/runs", "No such file")]
)
def test_a_folder_that_cannot_hold_runs_is_one_line(given: dict[str, object], output: str, reason: str) -> None:
    with pytest.raises(BadInput, match=f"output: {output}/x cannot be written .*{reason}.*name another folder"):
        find_begun(parse({**given, "output": output}, "test"))


def test_a_look_changes_no_store(given: dict[str, object], tmp_path: Path) -> None:
    run = parse({**given, "store": {"url": f"sqlite:///{tmp_path}/agrpo.db"}}, "test")
    (tmp_path / "agrpo.db").touch()
    assert find_begun(run, migrate=False) is None
    store = Store.open(run.store_url)
    with pytest.raises(OldSchema, match="schema None"):
        runs.list_runs(store)


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"data": {"rows": "checked.py:row"}}, "evaluation: 'checked.py:row'.*did you mean 'rows'?"),
        ({"data": {"rows": "checked.py:rows"}}, "evaluation: data.rows: .* returned 0 rows"),
        ({"steps": 5}, "evaluation: data: a stream may have no end"),
    ],
)
def test_prompts_to_evaluate_on_are_looked_at_before_anything_starts(
    given: dict[str, object], evaluation: dict[str, object], message: str
) -> None:
    run = {**given, "data": {"rows": "checked.py:stream"}}
    check_data(parse(run, "test"))
    with pytest.raises(BadInput, match=message):
        check_data(parse({**run, "evaluation": evaluation}, "test"))


def test_a_finished_run_is_known_before_its_code_is_imported(given: dict[str, object], tmp_path: Path) -> None:
    run = parse({**given, "rewards": ["gone.py:reward"], "store": {"url": f"sqlite:///{tmp_path}/agrpo.db"}}, "test")
    assert find_begun(run) is None
    assert not (tmp_path / "agrpo.db").exists()
    store = Store.open(run.store_url)
    store.migrate()
    runs.create_run(store, "x", stored_config(run), config_hash(run), str(run.run_dir))
    attempt = leases.acquire(store, "x", leases.this_process())
    for status in ("running", "finished"):
        runs.set_status(attempt, status)
    found = find_begun(run)
    assert found is not None and found.status == "finished"
