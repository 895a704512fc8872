from collections.abc import Iterator
from typing import Any

import datasets
import pytest

from agrpo.errors import BadInput
from agrpo.rollout.prompts import PromptSource, open_prompts
from agrpo.rollout.streams import NUM_ROWS_KEPT
from tests.rollout.run_world import rows


class Stream:
    """Rows without a length; counts how many were read."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_read = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in rows(self.num_rows):
            self.num_read += 1
            yield row


def places(source: PromptSource, indices: list[int]) -> list[tuple[int, int, int]]:
    prompts = [source.prompt(index) for index in indices]
    return [(prompt.epoch, prompt.row_index, prompt.row["number"]) for prompt in prompts]


def test_rows_come_in_order_again_in_every_epoch() -> None:
    source = open_prompts(datasets.Dataset.from_list(rows(3)), num_epochs=2)
    assert source.stop_index(16) == 6
    assert places(source, [0, 2, 3, 5]) == [(0, 0, 0), (0, 2, 2), (1, 0, 0), (1, 2, 2)]
    assert source.prompt(1).messages == [{"role": "user", "content": "1"}]
    assert source.prompt(1).columns() == {"number": 1}


@pytest.mark.parametrize(("num_epochs", "stop"), [(None, None), (1, 10), (0.25, 3), (1.5, 15)])
def test_part_of_an_epoch_is_rounded_up(num_epochs: float | None, stop: int | None) -> None:
    assert open_prompts(rows(10), num_epochs).stop_index(16) == stop


def test_a_stream_is_read_forward_only_as_far_as_claims_need() -> None:
    stream = Stream(100)
    source = open_prompts(stream, num_epochs=1)
    assert source.stop_index(16) == 16
    assert places(source, [0, 1, 15]) == [(0, 0, 0), (0, 1, 1), (0, 15, 15)]
    assert source.stop_index(10) == 16
    assert stream.num_read == source.num_read == 16


def test_a_stream_that_ends_begins_the_next_epoch() -> None:
    source = open_prompts(datasets.Dataset.from_list(rows(3)).to_iterable_dataset(), num_epochs=2)
    assert source.num_rows is None
    assert source.stop_index(16) == 6
    assert source.num_rows == 3
    assert places(source, [2, 3, 4]) == [(0, 2, 2), (1, 0, 0), (1, 1, 1)]


def test_a_resumed_stream_finds_its_place_and_an_old_claim_starts_it_again() -> None:
    stream = Stream(3 * NUM_ROWS_KEPT)
    source = open_prompts(stream, num_epochs=None)
    assert places(source, [2 * NUM_ROWS_KEPT]) == [(0, 2 * NUM_ROWS_KEPT, 2 * NUM_ROWS_KEPT)]
    assert places(source, [5]) == [(0, 5, 5)]
    assert places(source, [3 * NUM_ROWS_KEPT + 1]) == [(1, 1, 1)]


@pytest.mark.parametrize("prompt", ["text", [], [{"content": "no role"}], ["text"], None])
def test_a_prompt_that_is_no_conversation_is_refused(prompt: object) -> None:
    with pytest.raises(BadInput, match=r"row 0 of the dataset has (prompt|no 'prompt')"):
        open_prompts([{"prompt": prompt}], 1).prompt(0)


def test_no_rows_and_no_dataset_are_refused() -> None:
    for dataset, words in (([], "no rows"), (Stream(0), "no rows"), (None, "no dataset")):
        with pytest.raises(BadInput, match=words):
            open_prompts(dataset, None).stop_index(1)
