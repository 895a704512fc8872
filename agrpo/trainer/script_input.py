"""What a plain script hands over, looked at before anything is loaded."""

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from agrpo.errors import BadInput


def refuse_unfinished(**parts: Any) -> None:
    """Refuse parts of the documented signature that do not work yet."""
    works = {
        "peft_config": "train all weights (leave peft_config out), or merge the adapter into the model first",
    }
    for name, value in parts.items():
        if value is not None:
            raise BadInput(f"{name} is not supported yet: {works[name]}")


def check_rewards(reward_funcs: Any, scored_elsewhere: bool = False) -> tuple[Callable[..., Any], ...]:
    """The reward functions as a tuple. Raises BadInput for none, for reward models and for what cannot be called.

    `scored_elsewhere`: an environment or the rollout loop gives rewards too, so that there may be none here.
    """
    listed = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if reward_funcs is None or not listed:
        if scored_elsewhere:
            return ()
        raise BadInput("reward_funcs is missing: give a function that scores completions, or a list of them")
    for function in listed:
        if isinstance(function, str | PreTrainedModel):
            raise BadInput(
                f"reward_funcs holds the model {function if isinstance(function, str) else type(function).__name__!r}: "
                "put a reward model behind a server of its own and call that from a reward function"
            )
        if not callable(function):
            raise BadInput(f"reward_funcs holds {function!r}, which cannot be called: give functions")
    return tuple(listed)


def check_dataset(dataset: Any, has_environment: bool = False, max_steps: int = -1) -> None:
    """Raise BadInput unless the first row has a conversational prompt of texts, or an environment may give it."""
    if dataset is None and has_environment:
        if max_steps <= 0:
            raise BadInput("max_steps is missing: without train_dataset the environment's data has no end")
        return
    if dataset is None:
        raise BadInput("train_dataset is missing: give a dataset with a conversational `prompt` column")
    row = next(iter(dataset), None)
    if row is None:
        raise BadInput("train_dataset is empty: give at least one row")
    if has_environment and isinstance(row, dict) and "prompt" not in row:
        return
    if not isinstance(row, dict) or "prompt" not in row:
        raise BadInput(f"train_dataset has no `prompt` column, only {sorted(row)}: name the conversation `prompt`")
    prompt = row["prompt"]
    if not isinstance(prompt, list) or not all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt):
        raise BadInput(
            f"prompt {str(prompt)[:80]!r} is no conversation: write [{{'role': 'user', 'content': 'your text'}}]"
        )
    if any(not isinstance(message["content"], str) for message in prompt):
        raise BadInput("a prompt's content is not plain text: images and other parts cannot be trained on")
