"""An environment in the worker's own process."""

from typing import Any

from agrpo.environments.methods import accepted, check_kind, has_reward, left, tool_names
from agrpo.rollout.threads import Threads


class LocalEnvironment:
    """A user's instance; what blocks runs on the threads of the tools."""

    def __init__(self, instance: Any, threads: Threads) -> None:
        check_kind(type(instance))
        self.kind: type = type(instance)
        self.name = self.kind.__name__
        self.tools = [getattr(instance, name) for name in tool_names(type(instance))]
        self.scores_itself = has_reward(type(instance))
        self._instance = instance
        self._threads = threads

    async def reset(self, columns: dict[str, Any], timeout_s: float) -> Any:
        """Begin a rollout; None, or what the environment says to the model."""
        return await self._threads.run(self._instance.reset, accepted(self._instance.reset, columns), timeout_s)

    async def get_reward(self, timeout_s: float) -> Any:
        """The environment's own reward for the rollout that has just ended."""
        return await self._threads.run(self._instance.get_reward, {}, timeout_s)

    def close(self) -> None:
        """Leave what the instance holds; whoever drops this drops it."""
        left(self._instance)
