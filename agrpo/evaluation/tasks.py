"""The held-out prompts of a run, and what makes two evaluations comparable."""

import hashlib
import inspect
import json
from typing import Any

from agrpo.callables import resolve_callable
from agrpo.errors import BadInput
from agrpo.rollout.prompts import open_prompts
from agrpo.runfile import RunFile, load_dataset

_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length"),
    *("chat_template_kwargs", "max_tool_calling_iterations"),
}


def prompts_of(run: RunFile) -> str:
    """What a person reads of where the prompts are from."""
    data = run.evaluation.data
    return "the prompts of the training" if data is None else str(data.rows or data.path)


def held_out_rows(run: RunFile) -> list[dict[str, Any]]:
    """The rows to evaluate on: `evaluation.data`, else the training rows.

    Raises BadInput when there are none, when one of them is no prompt, and for a stream without a limit.
    """
    data = run.evaluation.data or run.data
    if data is None:
        raise BadInput("evaluation.data: nothing to evaluate on; describe held-out prompts there")
    try:
        rows = load_dataset(run.model_copy(update={"data": data}))
        if data.limit is None and not hasattr(rows, "__len__"):
            raise BadInput("data: a stream may have no end; say with evaluation.data.limit how many rows to take of it")
        listed = [dict(row) for row in rows or ()]
        prompts = open_prompts(listed, 1.0, needs_prompt=not run.environment.paths)
        for index in range(len(listed)):
            prompts.prompt(index)
    except BadInput as error:
        raise BadInput(f"evaluation: {error}") from None
    return listed


def fingerprint(run: RunFile) -> str:
    """Equal for evaluations that ask the same prompts in the same way and score them with the same rewards."""
    named = [*run.rewards, *run.tools, *run.environment.paths, *([run.loop] if run.loop is not None else [])]
    asked = {
        "code": {path: _source(path) for path in named},
        "rows": held_out_rows(run),
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
