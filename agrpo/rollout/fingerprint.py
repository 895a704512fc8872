"""Is the data set still what it was when the run began? Prompts are known by their place in it."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import xxhash

NUM_ROWS_READ = 200_000
"""A table with more rows is known by its sample alone."""
NUM_ROWS_OF_SAMPLE = 2048
"""Rows of a table's sample, spread evenly; a table with fewer is its own sample."""
NUM_ROWS_OF_STREAM = 16
"""Rows at the beginning of a stream that are read."""

_BATCH = 1000


def fingerprint(dataset: Any) -> str:
    """A short text that is the same for the same rows in the same order, and tells the number of rows of a table.

    Every row counts, but for tables of more than NUM_ROWS_READ rows and rows that JSON cannot hold, such as pictures,
    which take too long to read: their sample counts.
    """
    if not hasattr(dataset, "__len__"):
        return f"stream, {rows_digest(islice(iter(dataset), NUM_ROWS_OF_STREAM))}"
    size = len(dataset)
    places = range(0, size, max(1, -(-size // NUM_ROWS_OF_SAMPLE)))
    sample = [dataset[index] for index in sorted({*places, size - 1})] if size else []
    # An older agrpo noted no more than this: what follows must leave it as it is.
    known = f"{size} rows, {rows_digest(sample)}"
    if len(sample) == size or size > NUM_ROWS_READ or not _is_plain(sample[0]):
        return known
    return f"{known}, all {rows_digest(_rows(dataset, size))}"


def rows_digest(rows: Iterable[Any]) -> str:
    """A digest of rows in their order."""
    digest, encoder = xxhash.xxh3_128(), json.JSONEncoder(sort_keys=True, default=_words)
    for row in rows:
        digest.update(encoder.encode(row).encode() + b"\n")
    return digest.hexdigest()


def _rows(dataset: Any, size: int) -> Iterator[Any]:
    """All rows; those of a `datasets.Dataset` come ten times as fast in batches of columns."""
    if not hasattr(dataset, "iter"):
        yield from islice(iter(dataset), size)
        return
    for columns in dataset.iter(_BATCH):
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _is_plain(row: Any) -> bool:
    try:
        json.dumps(row)
    except TypeError:
        return False
    return True


def _words(value: Any) -> str:
    """What JSON cannot hold, without its address: that is another one in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
