"""The held-out prompts of a run, and what makes two evaluations comparable."""

import hashlib
import inspect
import json
from typing import Any

from agrpo.callables import resolve_callable
from agrpo.errors import BadInput
from agrpo.runfile import RunFile, load_dataset

_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length"),
    *("chat_template_kwargs", "max_tool_calling_iterations"),
}


def held_out_rows(run: RunFile) -> Any:
    """The rows to evaluate on: `evaluation.data`, else the training rows. Raises BadInput when there are none."""
    held_out = run if run.evaluation.data is None else run.model_copy(update={"data": run.evaluation.data})
    rows = load_dataset(held_out)
    if rows is None:
        raise BadInput("evaluation.data: nothing to evaluate on; describe held-out prompts there")
    return rows


def fingerprint(run: RunFile) -> str:
    """Equal for evaluations that ask the same prompts in the same way and score them with the same rewards."""
    named = [*run.rewards, *run.tools, *run.environment.paths, *([run.loop] if run.loop is not None else [])]
    asked = {
        "code": {path: _source(path) for path in named},
        "rows": [dict(row) for row in held_out_rows(run)],
        **run.model_dump(mode="json", include={"rewards", "tools", "environment", "loop"}),
        "evaluation": run.evaluation.model_dump(mode="json", include={"num_samples", "temperature", "pass_reward"}),
        "sampling": run.trainer.model_dump(mode="json", include=_SAMPLING),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _source(path: str) -> str:
    """The text of the module that a callable is from, as it may call what stands beside it; empty for compiled code."""
    module = inspect.getmodule(resolve_callable(path))
    try:
        return "" if module is None else inspect.getsource(module)
    except (OSError, TypeError):
        return ""
