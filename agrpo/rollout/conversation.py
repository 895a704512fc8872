"""The prompt of every turn: the whole conversation, rendered so that it begins with what was sampled if it can."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from agrpo.errors import RequestRefused
from agrpo.records import Message, TurnRecord
from agrpo.tools.calls import Schema
from agrpo.tools.families import knows_tools, training_template
from agrpo.tools.reading import Reply, ReplyReader
from agrpo.tools.schemas import describe_in_text, describe_to_user

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NUM_TEXTS_KEPT = 64


class ChatFormat:
    """How messages and tools become tokens and back, for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", keywords: dict[str, Any], end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._keywords = keywords
        self._end_ids = end_ids
        # The rollouts of a group begin with the same text.
        self._encode = lru_cache(maxsize=NUM_TEXTS_KEPT)(self._encode_anew)

    def reader(self, schemas: Sequence[Schema]) -> ReplyReader:
        """What reads the turns of a rollout with these tools."""
        return ReplyReader(self._tokenizer, self._template(schemas), self._end_ids)

    def render(self, messages: list[Message], schemas: Sequence[Schema] = ()) -> list[int]:
        """Token ids of a conversation with the generation prompt; with tools, by a template that keeps prefixes."""
        return self.encode(self.text(messages, schemas))

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered conversation."""
        return list(self._encode(text))

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens, special ones included."""
        return str(self._tokenizer.decode(token_ids))

    def text(self, messages: list[Message], schemas: Sequence[Schema] = ()) -> str:
        """A rendered conversation before it is made into tokens. Raises RequestRefused where the template does."""
        keywords = dict(self._keywords)
        if not schemas:
            return self._rendered(messages, keywords)
        template = keywords["chat_template"] = self._template(schemas)
        if knows_tools(template):
            return self._rendered(messages, {**keywords, "tools": list(schemas)})
        try:
            return self._rendered(describe_in_text(messages, schemas), keywords)
        except RequestRefused:
            return self._rendered(describe_to_user(messages, schemas), keywords)

    def shows_calls(self, schemas: Sequence[Schema]) -> bool:
        """Whether the template renders the `tool_calls` of a message."""
        return "tool_calls" in self._template(schemas)

    def _rendered(self, messages: list[Message], keywords: dict[str, Any]) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **keywords)
            )
        except TemplateError as error:
            raise RequestRefused(
                f"the chat template refuses a conversation ({error}); mend the prompt, or give a template that takes "
                "it in chat_template_kwargs"
            ) from error

    def _encode_anew(self, text: str) -> list[int]:
        # JSON can hold half of a surrogate pair, which a model's call, or who echoes it, brings into the text.
        text = text.encode(errors="replace").decode()
        ids: Any = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(ids)

    def _template(self, schemas: Sequence[Schema]) -> str:
        if "chat_template" in self._keywords:
            return str(self._keywords["chat_template"])
        tools: Any = list(schemas) or None
        return training_template(self._tokenizer.get_chat_template(tools=tools))


class Conversation:
    """One rollout's messages and turns while it grows."""

    def __init__(self, chat: ChatFormat, prompt: list[Message], schemas: Sequence[Schema]) -> None:
        self.prompt = prompt
        self.completion: list[Message] = []
        """Messages after the prompt."""
        self.turns: list[TurnRecord] = []
        self._chat = chat
        self._schemas = list(schemas)
        self._reader = chat.reader(schemas)
        self._shows_calls = chat.shows_calls(schemas)
        self._written: list[Message] = []
        """The completion with every answer as the text that was sampled."""
        self._held = ""
        """The text of the last prompt and of what was sampled for it."""

    def next_prompt(self) -> list[int]:
        """The conversation so far: as messages, or with the answers as they were written where only that keeps them.

        A template may put a call into other words than the model did, or refuse two calls in one message; the sampled
        text can be rendered as well. Raises RequestRefused where the template refuses both.
        """
        shown = self._text(self.completion) if self._shows_calls else None
        if shown is None:
            shown = self._chat.text(self.prompt + self._written, self._schemas)
        elif not shown.startswith(self._held):
            written = self._text(self._written)
            shown = written if written is not None and written.startswith(self._held) else shown
        self._held = shown
        return self._chat.encode(shown)

    def add_turn(self, turn: TurnRecord) -> Reply:
        """Read what the model said; nothing said leaves no message."""
        self.turns.append(turn)
        self._held += self._chat.decode(turn.output_ids)
        reply = self._reader.read(turn.prompt_ids, turn.output_ids, self._schemas)
        if turn.output_ids:
            self.completion.append(reply.message)
            text = {"role": "assistant", "content": reply.written}
            self._written.append(text if reply.calls else reply.message)
        return reply

    def add_answers(self, reply: Reply, answers: list[str]) -> None:
        """What the tools said to the calls of a reply."""
        for call, answer in zip(reply.calls, answers, strict=True):
            self.add_message({"role": "tool", "name": call.name or "unknown", "content": answer})

    def add_message(self, message: Message) -> None:
        """What somebody else than the model says."""
        self.completion.append(message)
        self._written.append(message)

    @property
    def output_ids(self) -> list[int]:
        """Generated tokens of all turns."""
        return [token_id for turn in self.turns for token_id in turn.output_ids]

    def _text(self, completion: list[Message]) -> str | None:
        """The conversation with this completion; None where the template refuses it."""
        try:
            return self._chat.text(self.prompt + completion, self._schemas)
        except RequestRefused:
            return None
