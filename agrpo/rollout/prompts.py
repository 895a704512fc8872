"""Prompts in dataset order under persistent indices: prompt index = epoch * rows of the dataset + row."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agrpo.errors import BadInput
from agrpo.records import Message
from agrpo.rollout.streams import RowStream
from agrpo.store.streams import StreamPosition

NUM_OWN_ROWS = 1000
"""Rows of a pass where an environment owns the data and there are none."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the dataset at its place in the run."""

    prompt_index: int
    epoch: int
    """Complete passes before this one, from 0."""
    row_index: int
    row: dict[str, Any]
    messages: list[Message]
    """Empty where an environment gives the prompt."""

    def columns(self) -> dict[str, Any]:
        """The row without its prompt: what reward functions get."""
        return {name: value for name, value in self.row.items() if name != "prompt"}


class PromptSource(Protocol):
    """Where prompts come from."""

    @property
    def num_rows(self) -> int | None:
        """Rows of one pass; None while a stream has not been read to its end."""

    @property
    def num_read(self) -> int:
        """Rows of a stream read so far: grows while a call takes long."""

    def stop_index(self, wanted: int) -> int | None:
        """First prompt index that must not be claimed now, None when there is no end.

        A stream is read until `wanted` prompts are known to exist.
        """

    def prompt(self, prompt_index: int) -> Prompt:
        """The prompt at an index below `stop_index`; raises BadInput when its row is no conversation."""

    def take_positions(self) -> list[StreamPosition]:
        """Where a stream can be read on, as found since the last call: to be noted with the next claim."""


def open_prompts(
    dataset: Any, num_epochs: float | None, needs_prompt: bool = True, known: Sequence[StreamPosition] = ()
) -> PromptSource:
    """Prompts of a table, or of a stream where the dataset has no length; `num_epochs` None: endless.

    With `needs_prompt` False an environment gives the prompt, and without a dataset all the rest too. `known`: what the
    run has noted of its stream.
    """
    if dataset is None and needs_prompt:
        raise BadInput("no dataset: the worker has nothing to generate from; give train_dataset")
    if dataset is None:
        return TablePrompts([{}] * NUM_OWN_ROWS, num_epochs, needs_prompt)
    if hasattr(dataset, "__len__"):
        return TablePrompts(dataset, num_epochs, needs_prompt)
    return StreamPrompts(dataset, num_epochs, needs_prompt, known)


class TablePrompts:
    """Prompts of a dataset with a length."""

    def __init__(self, dataset: Any, num_epochs: float | None, needs_prompt: bool = True) -> None:
        self.num_rows: int | None = len(dataset)
        self.num_read = 0
        self._dataset = dataset
        self._stop = _end(len(dataset), num_epochs)
        self._needs_prompt = needs_prompt

    def stop_index(self, wanted: int) -> int | None:
        """End of the last epoch."""
        return self._stop

    def prompt(self, prompt_index: int) -> Prompt:
        """The row at this place."""
        epoch, row_index = divmod(prompt_index, len(self._dataset))
        return _prompt(prompt_index, epoch, row_index, self._dataset[row_index], self._needs_prompt)

    def take_positions(self) -> list[StreamPosition]:
        """None: every row is at hand."""
        return []


class StreamPrompts:
    """Prompts of an IterableDataset, read forward from where the run was."""

    def __init__(
        self,
        dataset: Iterable[dict[str, Any]],
        num_epochs: float | None,
        needs_prompt: bool = True,
        known: Sequence[StreamPosition] = (),
    ) -> None:
        self._stream = RowStream(dataset, known)
        self._num_epochs = num_epochs
        self._needs_prompt = needs_prompt

    @property
    def num_rows(self) -> int | None:
        """Rows of one pass; None while the stream has not been read to its end."""
        return self._stream.num_rows

    @property
    def num_read(self) -> int:
        """Rows read so far, again or not."""
        return self._stream.num_read

    def stop_index(self, wanted: int) -> int | None:
        """Rows known to exist; once the stream has ended, the end of the last epoch."""
        self._stream.read_until(wanted)
        return self._stream.num_known if self.num_rows is None else _end(self.num_rows, self._num_epochs)

    def prompt(self, prompt_index: int) -> Prompt:
        """The row at this place, read from the stream when it is not kept."""
        while True:
            epoch, row_index = divmod(prompt_index, self.num_rows) if self.num_rows else (0, prompt_index)
            row = self._stream.find(row_index)
            if row is not None:
                return _prompt(prompt_index, epoch, row_index, row, self._needs_prompt)
            # The stream ended before: now the number of its rows, and with it the epoch, is known.
            _end(self._stream.num_rows or 0, self._num_epochs)

    def take_positions(self) -> list[StreamPosition]:
        """Where the stream can be read on, as found since the last call."""
        return self._stream.take_positions()


def _end(num_rows: int, num_epochs: float | None) -> int | None:
    if num_rows == 0:
        raise BadInput("the dataset has no rows; give at least one prompt")
    return None if num_epochs is None else math.ceil(num_rows * num_epochs)


def _prompt(prompt_index: int, epoch: int, row_index: int, row: dict[str, Any], needs_prompt: bool) -> Prompt:
    messages = row.get("prompt")
    if messages is None and not needs_prompt:
        return Prompt(prompt_index, epoch, row_index, dict(row), [])
    if messages is None:
        raise BadInput(
            f"row {row_index} of the dataset has no 'prompt' (its columns: {', '.join(row) or 'none'}); expected a "
            'conversation there: a list of {"role": ..., "content": ...}'
        )
    is_conversation = isinstance(messages, list) and all(
        isinstance(message, dict) and "role" in message and "content" in message for message in messages
    )
    if not messages or not is_conversation:
        raise BadInput(
            f"row {row_index} of the dataset has prompt {str(messages)[:80]!r}; expected a conversation: "
            'a list of {"role": ..., "content": ...}'
        )
    return Prompt(prompt_index, epoch, row_index, dict(row), list(messages))
