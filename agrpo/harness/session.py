"""One rollout of a foreign agent: its requests become turns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agrpo.errors import MalformedAnswer, PromptTooLong, RequestRefused
from agrpo.harness.messages import fingerprint
from agrpo.harness.request import ChatRequest
from agrpo.records import Message, TurnRecord
from agrpo.rollout.conversation import ChatFormat
from agrpo.rollout.outages import is_outage
from agrpo.tools.calls import Schema
from agrpo.tools.reading import Reply

Sample = Callable[[list[int], int | None], Awaitable[TurnRecord]]
"""Prompt and most tokens wanted, to a turn."""


class ContextFull(Exception):
    """A conversation that has grown so long that it leaves no room for another token."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what was answered."""

    number: int
    """From 1."""
    messages: list[Message]
    turn: TurnRecord
    reply: Reply


class Session:
    """What an agent asked so far."""

    def __init__(self, chat: ChatFormat, sample: Sample) -> None:
        self.exchanges: list[Exchange] = []
        self.failure: Exception | None = None
        """Why we could not answer, until the agent asks again and is answered; a bug of ours stays."""
        self._chat = chat
        self._sample = sample
        self._written: dict[str, str] = {}

    async def answer(self, request: ChatRequest) -> Exchange:
        """Sample one turn for a conversation. Raises ContextFull, and what the sampling raises."""
        known = self.failure
        try:
            turn = await self._sample(self._prompt_ids(request.messages, request.tools), request.max_tokens)
            if not turn.output_ids and turn.finish_reason == "length":
                raise ContextFull(
                    f"the conversation has {len(turn.prompt_ids)} tokens, which leaves no room for another"
                )
            reply = self._chat.reader(request.tools).read(turn.prompt_ids, turn.output_ids, request.tools)
        except Exception as error:
            if _may_pass(self.failure):
                self.failure = error
            raise
        # What failed meanwhile, another request asked: this answer makes nothing good there.
        if self.failure is known and _may_pass(known):
            self.failure = None
        self._written[fingerprint(reply.message)] = reply.written
        self.exchanges.append(Exchange(len(self.exchanges) + 1, request.messages, turn, reply))
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
        """The conversation as it came, or with our answers as they were sampled where only that keeps them.

        Raises RequestRefused where the chat template takes neither.
        """
        written = [self._as_written(message) for message in messages]
        shown = self._rendered(messages, tools)
        if shown is None:
            return self._chat.render(written, tools)
        if self._continues(shown):
            return shown
        sampled = self._rendered(written, tools)
        return sampled if sampled is not None and self._continues(sampled) else shown

    def _rendered(self, messages: list[Message], tools: list[Schema]) -> list[int] | None:
        try:
            return self._chat.render(messages, tools)
        except RequestRefused:
            return None

    def _as_written(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        text = self._written.get(fingerprint(message))
        return message if text is None else {"role": "assistant", "content": text}

    def _continues(self, prompt_ids: list[int]) -> bool:
        return any(_begins_with(prompt_ids, turn) for turn in reversed(self.turns))


def _begins_with(prompt_ids: list[int], turn: TurnRecord) -> bool:
    num_prompt = len(turn.prompt_ids)
    end = num_prompt + len(turn.output_ids)
    return prompt_ids[num_prompt:end] == turn.output_ids and prompt_ids[:num_prompt] == turn.prompt_ids


def _may_pass(error: Exception | None) -> bool:
    """Not a bug, which stays one however the agent went on."""
    passing = (ContextFull, MalformedAnswer, RequestRefused, PromptTooLong)
    return error is None or isinstance(error, passing) or is_outage(error)
