"""Streams that are gone on with: neither gap nor repeat, and without reading everything again."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as some

from agrpo.errors import BadInput
from agrpo.rollout.streams import NUM_ROWS_BETWEEN, NUM_ROWS_COMPARED, NUM_ROWS_KEPT, RowStream
from agrpo.store.streams import StreamPosition

NUM_ROWS = 3 * NUM_ROWS_BETWEEN + 5


class Silent:
    """A stream that says nothing of its position; counts the rows that it gave."""

    def __init__(self, num_rows: int = NUM_ROWS, first: int = 0) -> None:
        self.num_rows, self.first = num_rows, first
        self.num_given = [0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.num_rows):
            self.num_given[0] += 1
            yield {"number": self.first + number}


class Stateful(Silent):
    """One that says where it is, with its counter shared by its copies."""

    begin = position = 0

    def __deepcopy__(self, memo: object) -> "Stateful":
        other = Stateful(self.num_rows, self.first)
        other.num_given = self.num_given
        return other

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.begin, self.num_rows):
            self.num_given[0] += 1
            self.position = number + 1
            yield {"number": self.first + number}

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = self.position = state["position"]


def numbers(stream: RowStream, indices: Sequence[int]) -> list[int | None]:
    found = [stream.find(index) for index in indices]
    return [None if row is None else row["number"] for row in found]


def read(dataset: Any, num_rows: int) -> list[StreamPosition]:
    """What a worker that came so far has noted, as it comes back from the store."""
    stream = RowStream(dataset)
    stream.read_until(num_rows)
    positions = stream.take_positions()
    assert stream.take_positions() == []
    return [StreamPosition(p.row_index, json.loads(json.dumps(p.state)), p.digest, p.is_end) for p in positions]


def test_positions_are_noted_when_the_rows_after_them_are_there() -> None:
    behind = NUM_ROWS_BETWEEN + NUM_ROWS_COMPARED
    assert read(Silent(), behind - 1) == []
    assert [(p.row_index, p.is_end) for p in read(Silent(), behind)] == [(NUM_ROWS_BETWEEN, False)]
    whole = [(p.row_index, p.is_end) for p in read(Silent(), NUM_ROWS + 1)]
    assert whole == [*((k * NUM_ROWS_BETWEEN, False) for k in (1, 2, 3)), (NUM_ROWS, True)]


def test_a_stream_with_a_state_goes_on_near_the_place_and_another_reads_on_from_the_beginning() -> None:
    place = 2 * NUM_ROWS_BETWEEN + 100
    for kind, cost in ((Stateful, 101), (Silent, place + 1)):
        dataset = kind()
        stream = RowStream(dataset, read(kind(), place))
        assert numbers(stream, [place]) == [place]
        assert dataset.num_given[0] == stream.num_read == cost


def test_the_end_is_known_to_later_processes() -> None:
    dataset = Stateful()
    stream = RowStream(dataset, read(Stateful(), NUM_ROWS + 1))
    assert stream.num_rows == NUM_ROWS
    assert numbers(stream, [NUM_ROWS - 1, NUM_ROWS, 0]) == [NUM_ROWS - 1, None, 0]
    assert dataset.num_given[0] <= NUM_ROWS_COMPARED + 1


HUGGING_FACE = {
    "generated": lambda: datasets.IterableDataset.from_generator(lambda: iter(Silent())),
    "mapped": lambda: datasets.IterableDataset.from_generator(lambda: iter(Silent())).map(lambda row: row),
    "filtered": lambda: datasets.IterableDataset.from_generator(lambda: iter(Silent(2 * NUM_ROWS))).filter(
        lambda row: row["number"] < NUM_ROWS
    ),
    "a table": lambda: datasets.Dataset.from_list(list(Silent())).to_iterable_dataset(num_shards=3),
    "taken": lambda: datasets.Dataset.from_list(list(Silent())).to_iterable_dataset().take(NUM_ROWS),
}


@pytest.mark.parametrize("make", HUGGING_FACE.values(), ids=HUGGING_FACE.keys())
def test_an_iterable_dataset_goes_on_by_its_state(make: Any) -> None:
    place = 3 * NUM_ROWS_BETWEEN + 2
    stream = RowStream(make(), read(make(), NUM_ROWS + 1))
    assert numbers(stream, [place, place + 1]) == [place, place + 1]
    assert stream.num_read < NUM_ROWS_BETWEEN
    assert numbers(stream, range(NUM_ROWS)) == list(range(NUM_ROWS))


def test_a_shuffle_buffer_is_not_in_the_state_and_its_rows_are_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    def shuffled() -> datasets.IterableDataset:
        return datasets.IterableDataset.from_generator(lambda: iter(Silent())).shuffle(seed=3, buffer_size=50)

    order = [row["number"] for row in shuffled()]
    assert order != sorted(order)
    stream = RowStream(shuffled(), read(shuffled(), 2 * NUM_ROWS_BETWEEN + 50))
    place = 2 * NUM_ROWS_BETWEEN + 7
    assert numbers(stream, range(place, place + 90)) == order[place : place + 90]
    assert "the rows before are read again" in capsys.readouterr().err


@pytest.mark.parametrize("changed", [Stateful(first=1), Silent(first=1), Stateful(NUM_ROWS_BETWEEN)])
def test_other_rows_than_then_are_refused(changed: Silent) -> None:
    stream = RowStream(changed, read(type(changed)(), 2 * NUM_ROWS_BETWEEN))
    with pytest.raises(BadInput, match=r"other rows from row 256 on .* resume the run with --accept-new-data"):
        stream.find(NUM_ROWS_BETWEEN + 1)


@given(
    kind=some.sampled_from([Silent, Stateful]),
    lives=some.lists(some.lists(some.integers(0, NUM_ROWS + 20), max_size=6), max_size=5),
    ahead=some.integers(1, 2 * NUM_ROWS_KEPT),
)
def test_whatever_was_asked_in_earlier_lives_the_rows_are_the_same(
    kind: type[Silent], lives: list[list[int]], ahead: int
) -> None:
    known: dict[int, StreamPosition] = {}
    for wanted in [*lives, [0, NUM_ROWS - 1]]:
        stream = RowStream(kind(), list(known.values()))
        stream.read_until(min(ahead, stream.num_known + NUM_ROWS_COMPARED))
        for row_index in wanted:
            row = stream.find(row_index)
            assert row == ({"number": row_index} if row_index < NUM_ROWS else None)
        known |= {position.row_index: position for position in stream.take_positions()}
