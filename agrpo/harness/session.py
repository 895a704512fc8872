"""One rollout of a foreign agent: its requests become turns."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agrpo.harness.messages import fingerprint, incoming
from agrpo.records import Message, TurnRecord
from agrpo.rollout.conversation import ChatFormat
from agrpo.tools.calls import Schema
from agrpo.tools.reading import Reply


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what was answered."""

    messages: list[Message]
    turn: TurnRecord
    reply: Reply


class Session:
    """What an agent asked so far."""

    def __init__(self, chat: ChatFormat, sample: Callable[[list[int]], Awaitable[TurnRecord]]) -> None:
        self.exchanges: list[Exchange] = []
        self.error: Exception | None = None
        """What went wrong on our side of the endpoint; it is raised when the agent has ended."""
        self._chat = chat
        self._sample = sample
        self._written: dict[str, str] = {}
        # Requests of one agent that come at the same time are answered one after the other, so that seeds repeat.
        self._lock = asyncio.Lock()

    async def answer(self, messages: list[dict[str, Any]], tools: list[Schema]) -> Exchange:
        """Sample one turn for a conversation. Raises UnreadableMessage, and what the sampling raises."""
        conversation = [incoming(message) for message in messages]
        async with self._lock:
            turn = await self._sample(self._prompt_ids(conversation, tools))
            reply = self._chat.reader(tools).read(turn.prompt_ids, turn.output_ids, tools)
            self._written[fingerprint(reply.message)] = reply.written
            self.exchanges.append(Exchange(conversation, turn, reply))
            return self.exchanges[-1]

    @property
    def turns(self) -> list[TurnRecord]:
        """Every sampling request, in order."""
        return [exchange.turn for exchange in self.exchanges]

    def completion(self) -> list[Message]:
        """What was said after the first request up to the last reply; only the replies, where threads differ."""
        if not self.exchanges:
            return []
        first, last = self.exchanges[0], self.exchanges[-1]
        if last.messages[: len(first.messages)] == first.messages:
            return [*last.messages[len(first.messages) :], last.reply.message]
        return [exchange.reply.message for exchange in self.exchanges]

    def _prompt_ids(self, messages: list[Message], tools: list[Schema]) -> list[int]:
        """The conversation as it came, or with our answers as they were sampled where only that keeps them."""
        shown = self._chat.render(messages, tools)
        written = self._chat.render([self._as_written(message) for message in messages], tools)
        return written if self._continues(written) and not self._continues(shown) else shown

    def _as_written(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        text = self._written.get(fingerprint(message))
        return message if text is None else {"role": "assistant", "content": text}

    def _continues(self, prompt_ids: list[int]) -> bool:
        held = [turn.prompt_ids + turn.output_ids for turn in self.turns]
        return any(prompt_ids[: len(ids)] == ids for ids in held)
