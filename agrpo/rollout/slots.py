"""Slots for rollouts in flight, with a limit that may move while they are held."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Self


class Slots:
    """At most `limit` holders at a time, first come first served; lowering the limit only delays new ones."""

    def __init__(self, limit: int) -> None:
        self.num_used = 0
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many may be held at once."""
        return self._limit

    @limit.setter
    def limit(self, value: int) -> None:
        self._limit = value
        self._grant()

    async def __aenter__(self) -> Self:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._grant()
        try:
            await future
        except asyncio.CancelledError:
            # A slot granted in the same moment must not be lost.
            if future.done() and not future.cancelled():
                self._release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self.num_used -= 1
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.num_used < self._limit:
            future = self._waiting.popleft()
            if not future.done():
                self.num_used += 1
                future.set_result(None)
