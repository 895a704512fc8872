"""The run file: one strict model for YAML, the command line and Prefect's form."""

import copy
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from agrpo.callables import resolve_callable
from agrpo.errors import BadInput
from agrpo.settings import (
    DataSettings,
    EnvironmentSettings,
    EvaluationSettings,
    LimitSettings,
    ModelSettings,
    Section,
    ServerSettings,
    StoreSettings,
    WorkerSettings,
)
from agrpo.trainer_settings import TrainerSettings

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = [
    "RunFile",
    "config_hash",
    "decisive",
    "environment_factory",
    "load",
    "load_dataset",
    "resolve_callable",
    "stored_config",
    "training_arguments",
]

# Limits, evaluations, secrets and the store's place may change between two attempts: they do not change what is learnt.
_NOT_HASHED = {"limits", "store", "evaluation", "secrets"}


class RunFile(Section):
    """A training run: what to train, on what, how, and where it is kept."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """The run's name: letters, digits, dots, dashes and underscores. The same name with the same settings continues the
    run."""
    model: ModelSettings
    data: DataSettings | None = None
    """The prompts; left out where the environment owns the data."""
    rewards: list[str] = Field(default=[])
    """Import paths of the reward functions, as "package.module:name" or "folder/file.py:name"; their sum counts."""
    tools: list[str] = Field(default=[])
    """Import paths of functions that the model may call."""
    environment: EnvironmentSettings = EnvironmentSettings()
    loop: str | None = None
    """Import path of a subclass of AsyncRolloutLoop; None: the loop of agrpo."""
    trainer: TrainerSettings = TrainerSettings()
    servers: ServerSettings = ServerSettings()
    workers: WorkerSettings = WorkerSettings()
    store: StoreSettings = StoreSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    secrets: dict[str, str] = Field(default={})
    """Environment variables for the run's processes, each with the name of the Prefect Secret block that holds it."""
    limits: LimitSettings = LimitSettings()
    output: str = "runs"
    """Folder that holds the folders of runs: checkpoints, logs."""

    @model_validator(mode="after")
    def _need_a_reward(self) -> Self:
        if not self.rewards and not self.environment.paths and self.loop is None:
            raise ValueError("no reward; list at least one function under 'rewards'")
        return self

    @model_validator(mode="after")
    def _need_data(self) -> Self:
        if self.data is None and self.environment.factory is None:
            raise ValueError("no data; describe the prompts under 'data', or name an environment that gives them")
        if self.data is None and self.trainer.max_steps <= 0:
            raise ValueError("no end; set trainer.max_steps, as the environment's data has none")
        return self

    @property
    def run_dir(self) -> Path:
        """Where this run keeps checkpoints and logs."""
        return Path(self.output) / self.name

    def kept_in(self, run_dir: str | Path) -> Self:
        """The same settings with the folder that the store names: a relative `output` depends on where one stands."""
        return self.model_copy(update={"output": str(Path(run_dir).parent)})

    @property
    def store_url(self) -> str:
        """The store in use: AGRPO_DATABASE_URL where it is set and not empty, else the run file's."""
        return os.environ.get("AGRPO_DATABASE_URL") or self.store.url


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunFile:
    """Read a YAML run file and apply overrides like "trainer.learning_rate=1e-5". Raises BadInput."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); give the path of a run file") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not text; give the path of a run file, which is YAML") from None
    try:
        given = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict):
        raise BadInput(f"{path}: a run file is a mapping with 'name', 'model', 'data' and 'rewards'")
    for override in overrides:
        _override(given, override)
    return parse(given, str(path))


def changed(stored: dict[str, Any], overrides: Iterable[str], source: str) -> RunFile:
    """Settings as the store keeps them, with overrides applied. Raises BadInput."""
    given = copy.deepcopy(stored)
    for override in overrides:
        _override(given, override)
    return parse(given, source)


def parse(given: dict[str, Any], source: str) -> RunFile:
    """Check plain values against the model; `source` begins every line of the error. Raises BadInput."""
    try:
        return RunFile.model_validate(given)
    except ValidationError as error:
        raise BadInput("\n".join(f"{source}: {_explain(problem)}" for problem in error.errors())) from None


def _explain(problem: Any) -> str:
    """One line: where, what was given, what was expected."""
    place = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{place}: {message}" if place else message
    if problem["type"] == "missing":
        return f"{place}: missing; add it"
    return f"{place}: {problem['input']!r} will not do: {message[0].lower()}{message[1:]}"


def _override(given: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    if not equals:
        raise BadInput(f"--set {override}: expected section.key=value, such as trainer.learning_rate=1e-5")
    *sections, key = path.strip().split(".")
    for section in sections:
        given = given.setdefault(section, {})
        if not isinstance(given, dict):
            raise BadInput(f"--set {override}: '{section}' is no section")
    try:
        given[key] = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError:
        raise BadInput(f"--set {override}: the value is not YAML; quote it if it is text") from None


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-5 is a number, and a key that is written twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubles = [key for key in keys if keys.count(key) > 1]
        if doubles:
            raise yaml.constructor.ConstructorError(None, None, f"key '{doubles[0]}' is written twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), None)


def stored_config(run: RunFile) -> dict[str, Any]:
    """What the store keeps of a run file: everything but the store's own address, which may hold a password."""
    return run.model_dump(mode="json", exclude={"store": {"url"}})


def config_hash(run: RunFile) -> str:
    """Hash of all settings that make two runs different, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(_hashed(run), sort_keys=True).encode()).hexdigest()


def decisive(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `config_hash` is taken over, of a stored configuration; settings that its version lacked get defaults."""
    try:
        return _hashed(RunFile.model_validate(stored))
    except ValidationError:  # a setting that is no more; the comparison will name it
        return {section: value for section, value in stored.items() if section not in _NOT_HASHED}


def _hashed(run: RunFile) -> dict[str, Any]:
    return run.model_dump(mode="json", exclude=_NOT_HASHED)


def training_arguments(run: RunFile) -> dict[str, Any]:
    """Keywords for AsyncGRPOConfig: the trainer section, with the run's folder as output."""
    return {"output_dir": str(run.run_dir), "run_name": run.name, **run.trainer.arguments()}


def load_dataset(run: RunFile) -> "Dataset | IterableDataset | None":
    """The rows to train on, in order, each with a `prompt` unless an environment gives it; None without `data`.

    Raises BadInput when there are none.
    """
    import datasets

    data = run.data
    if data is None:
        return None
    if data.rows is not None:
        rows: Any = resolve_callable(data.rows)()
        is_dataset = isinstance(rows, datasets.Dataset | datasets.IterableDataset)
        loaded = rows if is_dataset else _from_list(data.rows, rows, bool(run.environment.paths))
    else:
        loaded = _from_path(data)
    return loaded if data.limit is None else loaded.take(data.limit)


def environment_factory(run: RunFile) -> Callable[[], Any] | dict[str, Callable[[], Any]] | None:
    """What the `environment` section names: a factory, several by name, or None."""
    if run.environment.factory is not None:
        return resolve_callable(run.environment.factory)
    return {name: resolve_callable(path) for name, path in run.environment.factories.items()} or None


def _from_list(source: str, rows: Iterable[dict[str, Any]], has_environment: bool) -> "Dataset":
    import datasets

    listed = list(rows)
    if not listed or not all(isinstance(row, dict) and ("prompt" in row or has_environment) for row in listed):
        raise BadInput(
            f"data.rows: {source} must return rows that are mappings with a 'prompt'; it returned {len(listed)} rows"
        )
    return datasets.Dataset.from_list(listed)


def _from_path(data: DataSettings) -> "Dataset":
    import datasets

    path = Path(str(data.path))
    formats = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
    try:
        if path.suffix in formats:
            return datasets.load_dataset(formats[path.suffix], data_files=str(path), split=data.split)
        if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
            saved = datasets.load_from_disk(str(path))
            return saved[data.split] if isinstance(saved, datasets.DatasetDict) else saved
        return datasets.load_dataset(str(data.path), data.subset, split=data.split)
    except (OSError, ValueError, KeyError, StopIteration, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error.__cause__ or error).split()) or "it has no rows"
        raise BadInput(f"data.path: {data.path} (split {data.split}) cannot be read: {reason}") from None
