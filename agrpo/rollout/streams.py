"""Rows of a stream by their index: read forward, and begun again at a noted position rather than at the beginning.

A position is what the stream says of itself (`state_dict`, as IterableDataset has it) and a digest of the rows that
follow. Going on there is trusted only when those rows come: a state that leaves something out, such as a shuffle
buffer, would give other rows. Then, and for a stream that says nothing of itself, the rows before are read again.
"""

import bisect
import copy
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from agrpo.errors import BadInput
from agrpo.rollout.fingerprint import rows_digest
from agrpo.store.streams import StreamPosition

Row = dict[str, Any]

NUM_ROWS_KEPT = 1024
"""Rows kept for claims that come back out of order."""
NUM_ROWS_BETWEEN = 256
"""Rows between two positions that are noted."""
NUM_ROWS_COMPARED = 16
"""Rows after a position that must come again."""


class RowStream:
    """One pass after the other over a stream that gives the same rows in every pass."""

    def __init__(self, dataset: Iterable[Row], known: Sequence[StreamPosition] = ()) -> None:
        ends = [position.row_index for position in known if position.is_end]
        self.num_rows: int | None = ends[0] if ends else None
        """Rows of a pass; None while nobody has come to its end."""
        self.num_known = max((position.row_index for position in known), default=0)
        """Rows that are known to exist."""
        self.num_read = 0
        """Rows that this process has read, again or not."""
        self._dataset = dataset
        self._known = {position.row_index: position for position in known if not position.is_end}
        self._places = sorted(self._known)
        self._new = [] if ends else list[StreamPosition]()
        self._begun: tuple[int, dict[str, Any] | None] | None = None
        self._kept: OrderedDict[int, Row] = OrderedDict()
        self._has_states = hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")
        self._open(dataset, 0)

    def read_until(self, num_rows: int) -> None:
        """Read until so many rows are known to exist, or the stream ends."""
        if self.num_rows is None and self.num_known < num_rows:
            self._go_to(self.num_known)
            while self.num_known < num_rows and self._read():
                pass

    def find(self, row_index: int) -> Row | None:
        """The row at this index; None when the stream ends before it. Raises BadInput when the data has changed."""
        if row_index not in self._kept and (self.num_rows is None or row_index < self.num_rows):
            self._go_to(row_index)
            while row_index not in self._kept and self._read():
                pass
        return self._kept.get(row_index)

    def take_positions(self) -> list[StreamPosition]:
        """Positions found since the last call."""
        found, self._new = self._new, []
        return found

    def _read(self) -> bool:
        """Keep the next row; False at the end, after which the next pass begins."""
        if self._position % NUM_ROWS_BETWEEN == 0 and 0 < self._position not in self._known:
            self._begun = (self._position, self._state())
        try:
            row = next(self._rows)
        except StopIteration:
            self._end_pass()
            return False
        self._keep(row)
        if self._begun is not None and self._position - self._begun[0] == NUM_ROWS_COMPARED:
            self._note()
        return True

    def _keep(self, row: Row) -> None:
        self._kept[self._position] = row
        if len(self._kept) > NUM_ROWS_KEPT:
            self._kept.popitem(last=False)
        self._position += 1
        self.num_read += 1
        self.num_known = max(self.num_known, self._position)

    def _note(self) -> None:
        """The rows after the position that was begun are there: it can be noted."""
        assert self._begun is not None
        (row_index, state), self._begun = self._begun, None
        digest = rows_digest(self._kept[index] for index in range(row_index, self._position))
        position = StreamPosition(row_index, state, digest)
        self._known[row_index] = position
        bisect.insort(self._places, row_index)
        self._new.append(position)

    def _end_pass(self) -> None:
        if self.num_rows not in (None, self._position):
            raise BadInput(f"the stream gave {self._position} rows after {self.num_rows} before")
        if self._begun is not None and self._begun[0] < self._position:
            self._note()
        if self.num_rows is None:
            self.num_rows = self._position
            self._new.append(StreamPosition(self._position, None, "", is_end=True))
        self._open(self._dataset, 0)

    # Going elsewhere.

    def _open(self, dataset: Iterable[Row], position: int) -> None:
        self._stream = dataset
        self._rows: Iterator[Row] = iter(dataset)
        self._position = position
        self._begun = None

    def _go_to(self, row_index: int) -> None:
        """Make reading on give this row, from as near as possible."""
        place = bisect.bisect_right(self._places, row_index)
        best = self._known[self._places[place - 1]] if place else None
        if self._position <= row_index and (best is None or best.row_index <= self._position):
            return
        if best is None:
            self._open(self._dataset, 0)
        elif not self._resume(best):
            self._read_again(best)

    def _resume(self, position: StreamPosition) -> bool:
        """Begin at a position as the stream itself can; False when it cannot, or other rows come."""
        if not self._has_states or position.state is None:
            return False
        try:
            stream: Any = copy.deepcopy(self._dataset)  # a state stays with what it was loaded into
            stream.load_state_dict(position.state)
            self._open(stream, position.row_index)
            if self._agrees(position):
                return True
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            pass
        self._has_states = False
        print(
            f"the stream cannot go on by its state at row {position.row_index} (a shuffle buffer is not part of it): "
            "the rows before are read again",
            file=sys.stderr,
            flush=True,
        )
        return False

    def _read_again(self, position: StreamPosition) -> None:
        """Begin at a position by reading everything before it."""
        self._open(self._dataset, 0)
        for _ in islice(self._rows, position.row_index):
            self._position += 1
            self.num_read += 1
        if self._position < position.row_index or not self._agrees(position):
            raise BadInput(
                f"the stream gives other rows from row {position.row_index} on than when the run was there, and its "
                "prompts are known by their place: restore it, or resume the run with --accept-new-data"
            )

    def _agrees(self, position: StreamPosition) -> bool:
        """Whether the rows after the position are those of then; they are kept if so."""
        rows = list(islice(self._rows, NUM_ROWS_COMPARED))
        if rows_digest(rows) != position.digest:
            return False
        for row in rows:
            self._keep(row)
        return True

    def _state(self) -> dict[str, Any] | None:
        """What the stream says of its position, where it can and JSON can hold it."""
        if not self._has_states:
            return None
        stream: Any = self._stream
        state: dict[str, Any] = stream.state_dict()
        try:
            plain: dict[str, Any] = json.loads(json.dumps(state))
        except (TypeError, ValueError):
            return None
        return plain if plain == state else None
