"""The rollout loop of foreign agents."""

import copy
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, SupportsFloat

from agrpo.errors import BadInput
from agrpo.harness.endpoint import Endpoint
from agrpo.harness.session import ContextFull, Session
from agrpo.records import Message, Rollout, TurnRecord
from agrpo.rollout.loop import AsyncRolloutLoop, rollout_place
from agrpo.rollout.threads import Threads


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What an agent is started with."""

    base_url: str
    """Of an OpenAI-compatible endpoint that belongs to this rollout alone."""
    api_key: str
    model: str
    prompt: list[Message]
    columns: dict[str, Any]
    """The dataset's row without its prompt."""


Agent = Callable[[AgentTask], Any]
"""Sync or async; returns None, or its own reward."""


class HarnessRolloutLoop(AsyncRolloutLoop):
    """Every rollout is one run of an agent; whatever it asks the endpoint becomes a turn."""

    def __init__(self, *arguments: Any, agent: Agent, agent_timeout_s: float, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._agent = agent
        self._agent_timeout_s = agent_timeout_s
        self._endpoint = Endpoint(self.model_name)
        self.threads = Threads(
            "give the agent's client and tools time limits of their own, so that it ends by itself, or raise "
            "agent_timeout_s"
        )

    async def close(self) -> None:
        """Close the endpoint, which else goes with the event loop."""
        await self._endpoint.close()

    async def generate_one(self, prompt: list[Message], tools: list[Callable[..., Any]], group_id: int = 0) -> Rollout:
        """Run the agent; its errors are a bug, except when the endpoint could not serve it.

        One that gives up because its conversation is too long leaves a rollout of the turns it had.
        """
        session = Session(self.chat, self._sample)
        await self._endpoint.start()  # not in `setup`, which a subclass may fill without knowing of ours
        with self._endpoint.open(session, copy_context()) as (base_url, api_key):
            task = AgentTask(base_url, api_key, self.model_name, prompt, _columns())
            reward, gave_up = None, None
            try:
                reward = await self.threads.run(self._agent, {"task": task}, self._agent_timeout_s)
            except Exception as error:
                if session.failure is None:
                    raise
                gave_up = error
        if session.failure is not None and not isinstance(session.failure, ContextFull):
            raise session.failure from gave_up
        return Rollout(
            session.completion(),
            [token_id for turn in session.turns for token_id in turn.output_ids],
            session.turns,
            tool_call_count=sum(len(exchange.reply.calls) for exchange in session.exchanges),
            tool_failure_count=sum(call.error is not None for e in session.exchanges for call in e.reply.calls),
            reward=_checked(reward),
        )

    async def _sample(self, prompt_ids: list[int], max_tokens: int | None) -> TurnRecord:
        place = rollout_place.get()
        if place is not None:
            place.max_tokens = max_tokens
        return await self.generate_one_turn(prompt_ids)


def _columns() -> dict[str, Any]:
    place = rollout_place.get()
    row = {} if place is None else place.row
    # Every agent of the row gets these, also in later epochs: what one changes is its own.
    return {name: copy.deepcopy(value) for name, value in row.items() if name != "prompt"}


def _checked(reward: Any) -> float | None:
    if reward is None:
        return None
    if isinstance(reward, SupportsFloat):
        return float(reward)
    raise BadInput(f"the agent returned {str(reward)[:200]!r}; return its reward as a number, or None")
