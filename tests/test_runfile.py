"""The run file: what it accepts, what it says to what it does not, and that it agrees with the trainer's own config."""

import dataclasses
import pickle
import sys
from pathlib import Path

import pytest

from agrpo import runfile
from agrpo.errors import BadInput
from agrpo.trainer_settings import TrainerSettings

MINIMAL = """
name: small
model: {path: some/folder}
data: {rows: "rows.py:rows"}
rewards: ["rows.py:reward"]
"""

ROWS = """
def rows():
    return [{"prompt": [{"role": "user", "content": str(number)}], "answer": number} for number in range(5)]

def reward(completions, **columns):
    return [0.0 for _ in completions]

CONSTANT = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run file and its functions, each test's own modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("AGRPO_DATABASE_URL", raising=False)
    monkeypatch.delitem(sys.modules, "rows", raising=False)
    (tmp_path / "run.yaml").write_text(MINIMAL)
    (tmp_path / "rows.py").write_text(ROWS)
    return tmp_path


def refusal(*overrides: str) -> str:
    with pytest.raises(BadInput) as caught:
        runfile.load("run.yaml", overrides)
    return str(caught.value)


def test_a_minimal_file_has_defaults_for_the_rest(here: Path) -> None:
    run = runfile.load("run.yaml")
    assert run.run_dir == Path("runs/small")
    assert run.store_url == "sqlite:///runs/agrpo.db"
    assert run.trainer.num_generations == 8


def test_overrides_are_read_as_yaml(here: Path) -> None:
    run = runfile.load("run.yaml", ["trainer.learning_rate=2e-5", "servers.urls=[http://a:1]", "trainer.max_steps=3"])
    assert run.trainer.learning_rate == 2e-5
    assert run.servers.urls == ["http://a:1"]
    assert run.trainer.max_steps == 3


def test_a_number_with_an_exponent_is_a_number_everywhere(here: Path) -> None:
    run = runfile.load("run.yaml", ["trainer.training_arguments={adam_epsilon: 1e-6}"])
    assert run.trainer.training_arguments == {"adam_epsilon": 1e-6}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.learning_rat=1", "run.yaml: trainer: unknown key 'learning_rat'; did you mean 'learning_rate'?"),
        ("trainr={}", "run.yaml: unknown key 'trainr'; did you mean 'trainer'?"),
        ("trainer.num_generations=1", "trainer.num_generations: 1 will not do: input should be greater than or equal"),
        ("model={}", "run.yaml: model: no model; give 'path' (a folder or a Hub name) or 'prepare'"),
        ("model={prepare: gpt}", "model.prepare: 'gpt' will not do: input should be 'smollm2-135m-instruct'"),
        ("data.path=rows.jsonl", "data: give exactly one of 'rows' (a function) and 'path' (a dataset)"),
        ("rewards=[]", "run.yaml: no reward; list at least one function under 'rewards'"),
        ("name=a/b", "name: 'a/b' will not do"),
        ("trainer.training_arguments={vllm_server_base_url: http://a:1}", "write it under servers.urls"),
        ("trainer.training_arguments={seed: 1}", "'seed' stands under training_arguments; write it directly"),
        ("trainer.top_p=0.9", "run.yaml: trainer: top_p=0.9, min_p=None need top_k > 0"),
        ("trainer.min_p=0.1", "trainer: top_p=1.0, min_p=0.1 need top_k > 0"),
        ("trainer.lr_scheduler_type=linear", "trainer: linear learning rate without an end: set max_steps"),
        ("trainer.vllm_importance_sampling_clip_max=0.5", "clip_min=0.5, clip_max=0.5: expected 0 <= min < max"),
        ("nonsense", "--set nonsense: expected section.key=value"),
        ("name.first=x", "--set name.first=x: 'name' is no section"),
    ],
)
def test_a_wrong_value_is_one_line_that_says_what_to_do(here: Path, override: str, message: str) -> None:
    said = refusal(override)
    assert message in said
    assert "\n" not in said


def test_a_file_that_cannot_be_read_is_one_line(here: Path) -> None:
    for text in ("name: [", "- a list", "name: a\nname: b"):
        Path("bad.yaml").write_text(text)
        with pytest.raises(BadInput) as caught:
            runfile.load("bad.yaml")
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match=r"missing\.yaml: cannot be read"):
        runfile.load("missing.yaml")


def test_the_hash_changes_with_what_is_learnt_and_only_then(here: Path) -> None:
    plain = runfile.config_hash(runfile.load("run.yaml"))
    assert (
        runfile.config_hash(runfile.load("run.yaml", ["limits.max_attempts=99", "store.url=sqlite:///x.db"])) == plain
    )
    assert runfile.config_hash(runfile.load("run.yaml", ["trainer.seed=1"])) != plain


def test_a_run_of_an_earlier_version_is_the_same_with_todays_defaults(here: Path) -> None:
    now = runfile.stored_config(runfile.load("run.yaml"))
    then = {**now, "trainer": {key: value for key, value in now["trainer"].items() if key != "temperature"}}
    del then["tools"], then["limits"]
    assert runfile.decisive(then) == runfile.decisive(now)
    other = runfile.stored_config(runfile.load("run.yaml", ["trainer.temperature=0.5"]))
    assert runfile.decisive(then) != runfile.decisive(other)
    gone = runfile.decisive({**then, "trainer": {**then["trainer"], "no_more": 1}, "limits": {}})
    assert gone["trainer"]["no_more"] == 1 and "limits" not in gone


def test_what_the_store_keeps_gives_the_same_run_and_no_password(here: Path) -> None:
    run = runfile.load("run.yaml", ["store.url='postgresql+psycopg://me:swordfish@db/agrpo'"])
    kept = runfile.stored_config(run)
    assert "swordfish" not in str(kept)
    assert runfile.config_hash(runfile.parse(kept, "store")) == runfile.config_hash(run)


def test_the_environment_names_the_store_unless_it_is_empty(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGRPO_DATABASE_URL", "")
    assert runfile.load("run.yaml").store_url == "sqlite:///runs/agrpo.db"
    monkeypatch.setenv("AGRPO_DATABASE_URL", "sqlite:///other.db")
    assert runfile.load("run.yaml").store_url == "sqlite:///other.db"


def test_functions_are_found_in_files_and_can_be_pickled(here: Path) -> None:
    reward = runfile.resolve_callable("rows.py:reward")
    assert pickle.loads(pickle.dumps(reward)) is reward
    assert runfile.resolve_callable("os.path:join")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rows.py", "is no import path"),
        ("rows.py:rewrd", "has no 'rewrd'; did you mean 'reward'?"),
        ("rows.py:CONSTANT", "is a int, not a function"),
        ("rowz.py:reward", "no file rowz.py"),
        ("no_such_package.part:reward", "no module 'no_such_package'"),
    ],
)
def test_a_wrong_import_path_says_what_is_wrong(here: Path, path: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        runfile.resolve_callable(path)
    assert message in str(caught.value)


def test_another_module_of_the_same_name_is_not_taken_for_the_users(here: Path) -> None:
    (here / "json.py").write_text(ROWS)
    with pytest.raises(BadInput, match="another module named 'json'"):
        runfile.resolve_callable("json.py:reward")


def test_rows_come_from_a_function_or_a_file(here: Path) -> None:
    assert runfile.load_dataset(runfile.load("run.yaml"))["answer"][:] == [0, 1, 2, 3, 4]
    assert len(runfile.load_dataset(runfile.load("run.yaml", ["data.limit=2"]))) == 2  # type: ignore[arg-type]
    (here / "rows.jsonl").write_text('{"prompt": [{"role": "user", "content": "hi"}]}\n')
    from_file = runfile.load_dataset(runfile.load("run.yaml", ["data={path: rows.jsonl}"]))
    assert from_file["prompt"][0][0]["content"] == "hi"


def test_missing_data_is_one_line(here: Path) -> None:
    with pytest.raises(BadInput, match=r"data\.path: gone\.jsonl \(split train\) cannot be read"):
        runfile.load_dataset(runfile.load("run.yaml", ["data={path: gone.jsonl}"]))


def test_every_option_of_the_trainer_is_there_with_its_default(here: Path) -> None:
    from transformers import TrainingArguments

    from agrpo.trainer.async_grpo_config import AsyncGRPOConfig

    elsewhere = {"vllm_server_base_url"}  # servers.urls
    inherited = {field.name for field in dataclasses.fields(TrainingArguments)}
    own = {field.name for field in dataclasses.fields(AsyncGRPOConfig)} - inherited - elsewhere
    assert own <= set(TrainerSettings.model_fields)

    config = AsyncGRPOConfig(**runfile.training_arguments(runfile.load("run.yaml")))
    defaults = AsyncGRPOConfig(output_dir=config.output_dir, run_name=config.run_name)
    ours = set(TrainerSettings.model_fields) & set(vars(config))
    assert {key: vars(config)[key] for key in ours} == {key: vars(defaults)[key] for key in ours}


def test_every_key_is_described(here: Path) -> None:
    def undescribed(model: type[runfile.Section]) -> list[str]:
        return [f"{model.__name__}.{name}" for name, field in model.model_fields.items() if not field.description]

    sections = [section for section in runfile.Section.__subclasses__() if section is not runfile.RunFile]
    assert [name for section in sections for name in undescribed(section)] == []


def test_a_run_is_kept_where_the_store_says_wherever_one_stands(here: Path) -> None:
    run = runfile.load("run.yaml")
    assert run.run_dir == Path("runs/small")
    assert run.kept_in("/far/away/small").run_dir == Path("/far/away/small")
