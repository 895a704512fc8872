"""An environment in the worker's own process."""

import copy
from collections.abc import Callable
from typing import Any, Self

from agrpo.environments.methods import accepted, check_kind, has_reward, made, tool_names
from agrpo.errors import BadInput
from agrpo.rollout.child import nothing
from agrpo.rollout.isolation import wants_process
from agrpo.rollout.threads import Threads


class LocalEnvironment:
    """A user's instance; what blocks runs on the threads of the tools."""

    def __init__(self, instance: Any, threads: Threads, leave: Callable[[], None] = nothing) -> None:
        check_kind(type(instance))
        self.kind: type = type(instance)
        self.name = self.kind.__name__
        self.tools = [getattr(instance, name) for name in tool_names(type(instance))]
        self.scores_itself = has_reward(type(instance))
        self.close = leave
        """Leave what the instance holds; whoever drops this drops it."""
        self._instance = instance
        self._threads = threads

    @classmethod
    def start(cls, factory: Callable[[], Any], threads: Threads) -> Self:
        """Make the instance; blocks. Raises BadInput for one that wants a process, which only a class can say."""
        instance, leave = made(factory)
        try:
            if wants_process(type(instance)):
                raise BadInput(
                    f"{factory!r:.200} made an instance of {type(instance).__name__}, which wants a process of its "
                    "own; mark the factory with agrpo.isolated, too, or give the class itself"
                )
            return cls(instance, threads, leave)
        except BaseException:
            leave()
            raise

    async def reset(self, columns: dict[str, Any], timeout_s: float) -> Any:
        """Begin a rollout; None, or what the environment says to the model."""
        # Every rollout of the row gets these, also in later epochs: what one changes is its own.
        own = copy.deepcopy(accepted(self._instance.reset, columns))
        return await self._threads.run(self._instance.reset, own, timeout_s)

    async def get_reward(self, timeout_s: float) -> Any:
        """The environment's own reward for the rollout that has just ended."""
        return await self._threads.run(self._instance.get_reward, {}, timeout_s)
