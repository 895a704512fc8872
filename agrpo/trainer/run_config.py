"""The config class of a run that was started from a run file."""

import dataclasses
from typing import Any

from agrpo.callables import resolve_callable
from agrpo.errors import BadInput
from agrpo.runfile import RunFile
from agrpo.settings import unknown_key
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig


def config_class(run: RunFile) -> type[AsyncGRPOConfig]:
    """The class that the run file names. Raises BadInput when it is none, or lacks one of the training arguments."""
    kind: Any = AsyncGRPOConfig
    if run.trainer.config is not None:
        kind = resolve_callable(run.trainer.config)
        if not (isinstance(kind, type) and issubclass(kind, AsyncGRPOConfig)):
            raise BadInput(f"trainer.config: {run.trainer.config} is no subclass of AsyncGRPOConfig, as it must be")
    known = [field.name for field in dataclasses.fields(kind)]
    for key in run.trainer.training_arguments:
        if key not in known:
            raise BadInput(f"trainer.training_arguments: {kind.__name__} has no such field: {unknown_key(key, known)}")
    return kind  # type: ignore[no-any-return]


def make_config(run: RunFile, settings: dict[str, Any]) -> AsyncGRPOConfig:
    """The config with these settings, of the class that the run file names. Raises what `config_class` raises."""
    return config_class(run)(**settings)
