"""From generated tokens to an assistant's message and the calls in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agrpo.errors import BadInput
from agrpo.records import Message
from agrpo.tools.calls import Schema, ToolCall, call_of
from agrpo.tools.families import knows_tools, parser_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REASONING_END = "</think>"
_PREFIX_TOKENS = 256
"""End of the prompt that a tokenizer's own parser gets to see: it holds the start of the assistant's message."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of the model, read."""

    message: Message
    """As reward functions and templates see it: content, and `tool_calls` where there are any."""
    calls: list[ToolCall]
    """In order, those that cannot be run included."""
    written: str
    """The text of the turn, markup of calls included, without its end token."""


class ReplyReader:
    """Reads turns with the tokenizer's own response parsing, or with the parser of the template's family."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: str, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._parse = parser_of(template)
        self._end_ids = end_ids
        self._has_own = tokenizer.response_template is not None and knows_tools(template)
        if self._has_own:
            _check_template(tokenizer)

    def read(self, prompt_ids: list[int], output_ids: list[int], schemas: list[Schema]) -> Reply:
        """The message of a turn; without tools it is text and nothing else."""
        if not output_ids:  # a prompt that left no room
            return Reply({"role": "assistant", "content": ""}, [], "")
        tokenizer, kept = self._tokenizer, self._without_end(output_ids)
        written = str(tokenizer.decode(kept))
        plain = str(tokenizer.decode(kept, skip_special_tokens=True))
        if not schemas:
            return Reply({"role": "assistant", "content": plain}, [], written)
        if self._has_own:
            return self._read_by_template(prompt_ids, output_ids, schemas, written)
        thoughts, end, text = written.rpartition(_REASONING_END)
        parsed = self._parse(text, schemas)
        if not parsed.calls:
            return Reply({"role": "assistant", "content": plain}, [], written)
        content = self._without_special(thoughts + end + "\n\n" * bool(end) + parsed.content)
        return Reply(_message({"content": content.strip()}, parsed.calls), parsed.calls, written)

    def _read_by_template(
        self, prompt_ids: list[int], output_ids: list[int], schemas: list[Schema], written: str
    ) -> Reply:
        try:
            given: Any = self._tokenizer.parse_response(
                output_ids, prefix=prompt_ids[-_PREFIX_TOKENS:], tools=list(schemas)
            )
            given_calls = given.pop("tool_calls", None) or []
            entries = given_calls if isinstance(given_calls, list) else [given_calls]
            calls = [_call_in(entry) for entry in entries]
        except (ValueError, KeyError, RecursionError) as error:
            calls = [ToolCall("", error=f"the message cannot be read: {error}", text=written)]
            return Reply({"role": "assistant", "content": written}, calls, written)
        return Reply(_message({"content": "", **given}, calls), calls, written)

    def _without_end(self, output_ids: list[int]) -> list[int]:
        return output_ids[:-1] if output_ids[-1] in self._end_ids else output_ids

    def _without_special(self, text: str) -> str:
        for token in self._tokenizer.all_special_tokens:
            text = text.replace(str(token), "")
        return text


def _check_template(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Tell a template that is wrong from a message that cannot be read."""
    try:
        tokenizer.get_response_parser(prefix="")
    except ValueError as error:
        raise BadInput(
            f"response_template of the tokenizer cannot be used: {error}; mend it, or set it to None"
        ) from None


def _call_in(entry: Any) -> ToolCall:
    """A call as the tokenizer's own parsing gives it; the model may have written any JSON in its place."""
    return call_of(entry.get("function") if isinstance(entry, dict) else entry, str(entry))


def _message(fields: dict[str, Any], calls: Sequence[ToolCall]) -> Message:
    """A message with the calls that can be run; those that cannot be stay in its content."""
    broken = [call.text for call in calls if call.error is not None]
    good = [call.as_message() for call in calls if call.error is None]
    content = "\n".join(part for part in (fields["content"], *broken) if part)
    message = {"role": "assistant", **fields, "content": content}
    return {**message, "tool_calls": good} if good else message
