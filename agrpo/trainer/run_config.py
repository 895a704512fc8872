"""The config class of a run that was started from a run file."""

from typing import Any

from agrpo.callables import resolve_callable
from agrpo.errors import BadInput
from agrpo.runfile import RunFile
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig


def make_config(run: RunFile, settings: dict[str, Any]) -> AsyncGRPOConfig:
    """The config with these settings, of the class that the run file names. Raises BadInput when it is none."""
    if run.trainer.config is None:
        return AsyncGRPOConfig(**settings)
    kind: Any = resolve_callable(run.trainer.config)
    if not (isinstance(kind, type) and issubclass(kind, AsyncGRPOConfig)):
        raise BadInput(f"trainer.config: {run.trainer.config} is no subclass of AsyncGRPOConfig; derive it from that")
    return kind(**settings)
