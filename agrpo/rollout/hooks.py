"""The hooks of a rollout loop, called so that an error in one says where, and with what, it happened."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from agrpo.advantages import check_advantages
from agrpo.errors import BadInput
from agrpo.records import Message, Rollout, RolloutGroup
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.prompts import Prompt
from agrpo.rollout.threads import own_cancellation_is_a_bug


async def set_up(loop: AsyncRolloutLoop) -> None:
    """Run `setup`."""
    with own_cancellation_is_a_bug("setup"):
        await loop.setup()


async def close_after(loop: AsyncRolloutLoop, error: BaseException) -> None:
    """Run `close`; what goes wrong in it does not hide the error for which it is closed."""
    try:
        await loop.close()
    except Exception as late:
        if isinstance(error, asyncio.CancelledError):
            raise
        error.add_note("then close raised:\n" + "".join(traceback.format_exception(late)))


def wants(loop: AsyncRolloutLoop, prompt: Prompt) -> bool:
    """Whether `filter_prompt` lets a prompt through."""
    try:
        return loop.filter_prompt(prompt.row_index, prompt.row, prompt.epoch)
    except Exception as error:
        error.add_note(f"in filter_prompt for row {prompt.row_index}: {str(prompt.row)[:1000]}")
        raise


async def rollout_of(
    loop: AsyncRolloutLoop, messages: list[Message], tools: list[Callable[..., Any]], group_id: int
) -> Rollout:
    """What `generate_one` returns. Raises BadInput when that is no rollout."""
    with own_cancellation_is_a_bug("generate_one"):
        rollout = await loop.generate_one(messages, tools, group_id)
    if not isinstance(rollout, Rollout):
        raise BadInput(f"generate_one returned a {type(rollout).__name__}; return an agrpo.Rollout")
    return rollout


def advantages_of(loop: AsyncRolloutLoop, group: RolloutGroup) -> np.ndarray:
    """What `compute_advantages` returns, one finite number per rollout."""
    try:
        return check_advantages(loop.compute_advantages(group), len(group.completions))
    except Exception as error:
        error.add_note(f"in compute_advantages for row {group.row_index}: rewards {group.rewards}")
        raise
