"""Trying again what may pass."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agrpo.errors import MalformedAnswer, ServerOutage
from agrpo.rollout.outages import is_outage
from agrpo.rollout.threads import CallOverran

T = TypeVar("T")

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0)


async def outlast(attempt: Callable[[], Awaitable[T]], on_retry: Callable[[], None]) -> T:
    """What an attempt gives, repeated after an outage, and once after a bad answer or a hanging call.

    Raises the last attempt's own error. `on_retry` is called before each pause.
    """
    num_bad = 0
    for delay in RETRY_DELAYS_S:
        try:
            return await attempt()
        except Exception as error:
            is_bad = isinstance(error, MalformedAnswer | CallOverran)
            num_bad += is_bad
            may_help = num_bad == 1 if is_bad else is_passing(error)
            if not may_help:
                raise
        on_retry()
        await asyncio.sleep(delay)
    return await attempt()


def is_passing(error: BaseException) -> bool:
    """An outage of something other than the vLLM servers, whose own retries are over when they say so."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_passing(one) for one in error.exceptions)
    return is_outage(error) and not isinstance(error, ServerOutage)
