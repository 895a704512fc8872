"""Environments that tests use, also in processes of their own."""

import asyncio
import multiprocessing
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, Self


class Increment:
    """Counts up to a target of its own, or to the row's."""

    num_made = 0

    def __init__(self) -> None:
        type(self).num_made += 1
        self.num_resets = 0

    def reset(self, target: int = 2, **columns: Any) -> str | None:
        """Begin with 0."""
        self.counter, self.target, self.columns = 0, target, columns
        self.num_resets += 1
        return f"Count to {target}."

    def get_reward(self) -> float:
        """1 at the target."""
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: How far.
        """
        if step < 0:
            raise ValueError("only upwards")
        self.counter += step
        return self.counter

    @property
    def expensive(self) -> int:
        raise AssertionError("a property is no tool and is never read")

    def _hidden(self) -> None: ...


class Held(Increment):
    """Holds something from the moment when it is made."""

    held: ClassVar[list[str]] = []

    def __enter__(self) -> Self:
        self.held.append("taken")
        return self

    def __exit__(self, *error: object) -> None:
        self.held.append("given back")


class Silent:
    """Has an async reset that says nothing, and no reward."""

    async def reset(self, **columns: Any) -> None:
        await asyncio.sleep(0)

    async def look(self) -> str:
        """Look around."""
        return "nothing"


class Stuck:
    """Hangs where it is told to."""

    def __init__(self, where: str = "reset") -> None:
        self.where = where

    def reset(self, **columns: Any) -> str:
        self._maybe("reset")
        return "Go."

    def get_reward(self) -> float:
        self._maybe("get_reward")
        return 1.0

    def move(self) -> str:
        """Move."""
        self._maybe("move")
        return "moved"

    def _maybe(self, where: str) -> None:
        if where == self.where:
            time.sleep(3600)


class Isolated:
    """Says which process it is in, and dies or raises when told."""

    isolation = "process"

    def reset(self, **columns: Any) -> str:
        return f"pid {os.getpid()}"

    async def get_reward(self) -> float:
        return float(threading.active_count() > 0)

    def die(self) -> None:
        """Die."""
        os._exit(0)

    def fail(self, why: str = "no reason") -> None:
        """Fail.

        Args:
            why: The reason.
        """
        raise ValueError(why)

    def sleep(self, seconds: float) -> str:
        """Sleep.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "slept"


class Away:
    """Its service is away while a file exists."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def reset(self, **columns: Any) -> str:
        if self.flag.exists():
            raise ConnectionError("the service is away")
        return "Hello."

    def get_reward(self) -> float:
        return 1.0


class Holding:
    """Starts a process that never ends by itself when it is entered, and says to a file that it was left."""

    isolation = "process"

    def __init__(self, how: str, said: Path) -> None:
        self.how, self.said = how, said

    def __enter__(self) -> Self:
        if self.how == "fork":
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
            process.start()
        else:
            process = subprocess.Popen(["sleep", "3600"], start_new_session=self.how == "session")
        self.pid = process.pid
        return self

    def __exit__(self, *error: object) -> None:
        self.said.write_text("left")
        if self.how == "raises":
            raise OSError("the shell does not answer")

    def reset(self, **columns: Any) -> str:
        return str(self.pid)

    def fail(self) -> None:
        """Fail."""
        raise ValueError("no")

    def die(self) -> None:
        """Die."""
        os._exit(0)

    def hang(self) -> None:
        """Hang."""
        time.sleep(3600)
