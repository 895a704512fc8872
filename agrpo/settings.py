"""The sections of a run file: what people write, nothing else. Every key is described here and only here."""

import difflib
from textwrap import shorten
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from agrpo.store import DEFAULT_URL

PREPARED_MODELS_FOLDER = ".cache/models"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
# A form shows an enum as a list, even of one; a lone literal it would not let anybody choose.
_Prepared = Annotated[
    Literal["smollm2-135m-instruct"], WithJsonSchema({"type": "string", "enum": ["smollm2-135m-instruct"]})
]


class Section(BaseModel):
    """A part of the run file that knows all its keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        # What a form calls the section.
        model_title_generator=lambda section: section.__name__.removesuffix("Settings"),
    )

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, given: Any) -> Any:
        """Pydantic only says that a key is extra; a person wants the key that was meant."""
        if isinstance(given, dict):
            for key in given:
                if key not in cls.model_fields:
                    raise ValueError(unknown_key(str(key), list(cls.model_fields)))
        return given


def unknown_key(key: str, known: list[str]) -> str:
    """One line on a key that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    advice = f"did you mean '{near[0]}'?" if near else f"known here: {shorten(', '.join(sorted(known)), 600)}"
    return f"unknown key '{key}'; {advice}"


class ModelSettings(Section):
    """The model to train: a path, or the name of one that agrpo prepares."""

    path: str = ""
    """Folder of a saved model, or its name on the Hub. Filled in when `prepare` is given."""
    prepare: _Prepared | None = None
    """A small model that is made once from a PyPI package into .cache/models, without any Hub."""

    @model_validator(mode="before")
    @classmethod
    def _locate(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "prepare" not in given or given["prepare"] is None:
            return given
        place = f"{PREPARED_MODELS_FOLDER}/{given['prepare']}"
        if given.get("path", "") not in ("", place):
            raise ValueError("'path' and 'prepare' both name a model; keep one of them")
        return {**given, "path": place}

    @model_validator(mode="after")
    def _need_one(self) -> Self:
        if not self.path:
            raise ValueError("no model; give 'path' (a folder or a Hub name) or 'prepare'")
        return self


class DataSettings(Section):
    """The prompts: a function that returns them, or a dataset on disk or on the Hub."""

    rows: str | None = None
    """Import path of a function without arguments that returns a list of rows or a Dataset,
    as "package.module:name" or "folder/file.py:name". Each row has a conversational `prompt`."""
    path: str | None = None
    """Folder, JSON, JSONL or Parquet file, or the dataset's name on the Hub."""
    subset: str | None = None
    """Configuration of a Hub dataset."""
    split: str = "train"
    """Which split to train on."""
    limit: int | None = Field(default=None, ge=1)
    """Take only the first rows."""

    @model_validator(mode="after")
    def _need_one(self) -> Self:
        if (self.rows is None) == (self.path is None):
            raise ValueError("give exactly one of 'rows' (a function) and 'path' (a dataset)")
        return self


class EnvironmentSettings(Section):
    """Objects with a state for every rollout; their public methods are tools."""

    factory: str | None = None
    """Import path of a class, or of a function that returns an instance, as "package.module:Name"."""
    factories: dict[str, str] = Field(default={})
    """Several by name; the dataset's column `environment` chooses among them."""
    isolation: Literal["thread", "process"] = "thread"
    """`process` gives every instance a process of its own, for code that blocks, leaks or dies."""

    @model_validator(mode="after")
    def _need_at_most_one(self) -> Self:
        if self.factory is not None and self.factories:
            raise ValueError("'factory' and 'factories' both name environments; keep one of them")
        return self

    @property
    def paths(self) -> list[str]:
        """Every import path that is named."""
        return [*self.factories.values(), *([] if self.factory is None else [self.factory])]


class ServerSettings(Section):
    """The vLLM servers that generate: started by the run, or given by URL and then never stopped."""

    count: int = Field(default=1, ge=1)
    """How many servers to start; ignored when `urls` are given."""
    urls: list[str] = Field(default=[])
    """Addresses of running servers to use instead of starting any."""
    python: str | None = None
    """Interpreter whose environment holds vLLM; None is the one that runs agrpo."""
    gpus: list[int] | None = None
    """GPUs for the servers, shared out evenly; None takes all but the trainer's."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Longest prompt plus completion, in tokens; None is the model's own limit."""
    dtype: Dtype = "float32"
    """Precision of the servers' weights. float32 agrees best with the trainer's log-probabilities."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each server; None leaves it to vLLM."""
    kv_cache_gb: int = Field(default=1, ge=1)
    """Memory of the KV cache of a CPU server, in GB."""
    gpu_memory_frac: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that a server may use."""
    orphan_grace_s: float = Field(default=120.0, ge=0)
    """How long a server outlives a killed run, so that the next attempt can take it over, in seconds."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Time from start to the first healthy answer, in seconds."""
    args: list[str] = Field(default=[])
    """Further arguments for vLLM's server, such as ["--enable-prefix-caching"]."""


class WorkerSettings(Section):
    """The processes that turn prompts into scored samples."""

    count: int = Field(default=1, ge=0)
    """How many rollout workers to run beside the trainer; 0: all of them run elsewhere, by `agrpo worker RUN`."""


class StoreSettings(Section):
    """The SQL store that holds everything a run needs to go on after a kill."""

    url: str = DEFAULT_URL
    """SQLAlchemy URL; PostgreSQL when more than one machine takes part. AGRPO_DATABASE_URL wins over it."""
    commit: Literal["turn", "group"] = "turn"
    """What a killed worker has kept: every turn that came back, or only finished groups, with fewer writes."""
    keep_payloads: Literal["all", "none"] | int = "all"
    """Token ids and log-probabilities of finished steps: keep all, none, or those of the last n steps."""


class EvaluationSettings(Section):
    """How policies are compared: held-out prompts, answered and scored as in training."""

    data: DataSettings | None = None
    """Held-out prompts; None takes those of the training, which flatters and will not do for a nightly one."""
    num_samples: int = Field(default=4, ge=2)
    """Answers to each prompt."""
    pass_reward: float = 1.0
    """Reward from which an answer counts as passed, for pass@k."""
    temperature: float | None = Field(default=None, gt=0)
    """Sampling temperature; None: that of the training."""
    steps: int | None = Field(default=None, ge=1)
    """Evaluate whenever so many further steps are made, without stopping training; None: only when asked."""
    level: float = Field(default=0.05, gt=0, lt=1)
    """A nightly training is promoted when chance alone would give it such a lead less often than this."""


class LimitSettings(Section):
    """How processes that die are started again, and when a run that keeps dying gives up."""

    max_attempts: int = Field(default=20, ge=1)
    """How many attempts may die or fail before the run is given up."""
    restarts: int = Field(default=3, ge=0)
    """How often in a row each of its processes is restarted."""
    steady_after_s: float = Field(default=600.0, ge=0)
    """A process that ran for so many seconds has its restarts forgotten: the count and the pause start again."""
    backoff_s: float = Field(default=1.0, ge=0)
    """Pause before the first restart, doubled each time, in seconds."""
    standby: bool = False
    """Keep a second process of each worker loaded, which takes over at once when the worker dies. It costs the
    worker's memory once more, and imports your rewards, tools and data a second time."""
