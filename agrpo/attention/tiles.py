"""Attention over a row as a list of rectangles, for backends that take one rectangle at a time. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from agrpo.trees import Block, TreeLayout


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries [first_query, end_query) against keys [first_key, end_key); every query sees at least one key."""

    first_query: int
    end_query: int
    first_key: int
    end_key: int
    own: bool
    """Queries and keys lie in the same tail. Each query has exactly one such tile."""
    band: tuple[int, int] | None = None
    """(offset, window): query i sees key j when 0 <= i - j + offset < window, both counted inside the tile.
    None: an own tile is square and causal, in any other every query sees every key."""


def tiles(layout: TreeLayout, window: int | None = None, chunk: int | None = None) -> list[Tile]:
    """Cut a row's attention into tiles; those that begin with a token's own tail come first.

    Args:
        window: keys a query sees, itself included (sliding-window layers); None: its whole path.
        chunk: largest number of queries in a tile; None: as many as there are.
    """
    found: list[Tile] = []
    for block in sorted(layout.blocks, key=lambda block: not block.causal):
        if window is None:
            found.extend(_plain(block, chunk))
        elif block.causal:
            found.extend(_banded(layout, block, window, chunk or _QUERIES))
        else:
            for part in _by_tail(layout, block):
                found.extend(_banded(layout, part, window, chunk or _QUERIES))
    return found


# Bounds the mask of a windowed tile to 256 x (256 + window).
_QUERIES = 256


def _plain(block: Block, chunk: int | None) -> Iterator[Tile]:
    if chunk is None:
        yield Tile(block.first_query, block.end_query, block.first_key, block.end_key, block.causal)
        return
    for first in range(block.first_query, block.end_query, chunk):
        end = min(first + chunk, block.end_query)
        if block.causal:
            offset = first - block.first_key
            yield Tile(first, end, block.first_key, end, True, (offset, offset + chunk))
        else:
            yield Tile(first, end, block.first_key, block.end_key, False)


def _banded(layout: TreeLayout, block: Block, window: int, chunk: int) -> Iterator[Tile]:
    """Tiles of queries that lie in one tail, so that positions grow with the index."""
    shift = int(layout.position_ids[block.first_query] - layout.position_ids[block.first_key])
    distance = shift - block.first_query + block.first_key
    for first in range(block.first_query, block.end_query, chunk):
        end = min(first + chunk, block.end_query)
        first_key = max(block.first_key, first + distance - window + 1)
        end_key = min(block.end_key, end) if block.causal else block.end_key
        end = min(end, end_key - distance + window - 1)
        if first >= end or first_key >= end_key:
            continue
        offset = first + distance - first_key
        inside = not block.causal and offset + (end - first) <= window
        yield Tile(first, end, first_key, end_key, block.causal, None if inside else (offset, window))


def _by_tail(layout: TreeLayout, block: Block) -> Iterator[Block]:
    for start, fork in zip(layout.starts, layout.forks, strict=True):
        if fork.num_own and block.first_query <= start < block.end_query:
            yield Block(int(start), int(start) + fork.num_own, block.first_key, block.end_key, False)
