"""Is the data set still what it was when the run began? Prompts are known by their place in it."""

import json
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
        return f"{size} rows, {_digest(rows)}"
    return f"stream, {_digest(list(islice(iter(dataset), NUM_ROWS_OF_STREAM)))}"


def _digest(rows: list[Any]) -> str:
    digest = xxhash.xxh3_128()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()
