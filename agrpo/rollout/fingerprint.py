"""Is the data set still what it was when the run began? Prompts are known by their place in it."""

import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

import xxhash

NUM_ROWS_OF_TABLE = 2048
"""Rows of a table that are read, spread evenly; a table with fewer is read as a whole."""
NUM_ROWS_OF_STREAM = 16
"""Rows at the beginning of a stream that are read."""


def fingerprint(dataset: Any) -> str:
    """A short text that is the same for the same rows in the same order, and tells the number of rows of a table."""
    if hasattr(dataset, "__len__"):
        size = len(dataset)
        step = max(1, -(-size // NUM_ROWS_OF_TABLE))
        rows = [dataset[index] for index in sorted({*range(0, size, step), size - 1})] if size else []
        return f"{size} rows, {rows_digest(rows)}"
    return f"stream, {rows_digest(list(islice(iter(dataset), NUM_ROWS_OF_STREAM)))}"


def rows_digest(rows: Iterable[Any]) -> str:
    """A digest of rows in their order."""
    digest = xxhash.xxh3_128()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=_words).encode() + b"\n")
    return digest.hexdigest()


def _words(value: Any) -> str:
    """What JSON cannot hold, without its address: that is another one in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
