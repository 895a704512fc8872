"""Prompts in dataset order under persistent indices: prompt index = epoch * rows of the dataset + row."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from agrpo.errors import BadInput
from agrpo.records import Message

NUM_ROWS_KEPT = 1024
"""Rows of a stream kept for claims that come back out of order."""
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

    num_rows: int | None
    """Rows of one pass; None while a stream has not been read to its end."""

    def stop_index(self, ahead: int) -> int | None:
        """First prompt index that must not be claimed now, None when there is no end; may read `ahead` more rows."""

    def prompt(self, prompt_index: int) -> Prompt:
        """The prompt at an index below `stop_index`; raises BadInput when its row is no conversation."""


def open_prompts(dataset: Any, num_epochs: float | None, needs_prompt: bool = True) -> PromptSource:
    """Prompts of a table, or of a stream where the dataset has no length; `num_epochs` None: endless.

    With `needs_prompt` False an environment gives the prompt, and without a dataset all the rest too.
    """
    if dataset is None and needs_prompt:
        raise BadInput("no dataset: the worker has nothing to generate from; give train_dataset")
    if dataset is None:
        return TablePrompts([{}] * NUM_OWN_ROWS, num_epochs, needs_prompt)
    kind = TablePrompts if hasattr(dataset, "__len__") else StreamPrompts
    return kind(dataset, num_epochs, needs_prompt)


class TablePrompts:
    """Prompts of a dataset with a length."""

    def __init__(self, dataset: Any, num_epochs: float | None, needs_prompt: bool = True) -> None:
        self.num_rows: int | None = len(dataset)
        self._dataset = dataset
        self._stop = _end(len(dataset), num_epochs)
        self._needs_prompt = needs_prompt

    def stop_index(self, ahead: int) -> int | None:
        """End of the last epoch."""
        return self._stop

    def prompt(self, prompt_index: int) -> Prompt:
        """The row at this place."""
        epoch, row_index = divmod(prompt_index, len(self._dataset))
        return _prompt(prompt_index, epoch, row_index, self._dataset[row_index], self._needs_prompt)


class StreamPrompts:
    """Prompts of an IterableDataset, read forward; a claim that lies far behind starts the stream again."""

    def __init__(self, dataset: Iterable[dict[str, Any]], num_epochs: float | None, needs_prompt: bool = True) -> None:
        self.num_rows: int | None = None
        self._dataset = dataset
        self._num_epochs = num_epochs
        self._needs_prompt = needs_prompt
        self._rows: Iterator[dict[str, Any]] = iter(dataset)
        self._position = 0
        self._num_seen = 0
        self._kept: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def stop_index(self, ahead: int) -> int | None:
        """Rows known to exist; once the stream has ended, the end of the last epoch."""
        goal = self._num_seen + ahead
        while self.num_rows is None and self._num_seen < goal:
            self._read()
        return self._num_seen if self.num_rows is None else _end(self.num_rows, self._num_epochs)

    def prompt(self, prompt_index: int) -> Prompt:
        """The row at this place, read from the stream when it is not kept."""
        while True:
            # Asked anew each time: the stream's end, and with it the epoch, may turn up while reading.
            epoch, row_index = divmod(prompt_index, self.num_rows) if self.num_rows else (0, prompt_index)
            if row_index in self._kept:
                return _prompt(prompt_index, epoch, row_index, self._kept[row_index], self._needs_prompt)
            if row_index < self._position:
                self._rewind()
            self._read()

    def _read(self) -> None:
        try:
            row = next(self._rows)
        except StopIteration:
            if self.num_rows not in (None, self._position):
                raise BadInput(f"the stream gave {self._position} rows after {self.num_rows} before") from None
            self.num_rows = self._position
            _end(self.num_rows, self._num_epochs)
            self._rewind()
            return
        self._kept[self._position] = row
        if len(self._kept) > NUM_ROWS_KEPT:
            self._kept.popitem(last=False)
        self._position += 1
        self._num_seen = max(self._num_seen, self._position)

    def _rewind(self) -> None:
        self._rows = iter(self._dataset)
        self._position = 0


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
