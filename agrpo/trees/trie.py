"""The prefix trie of one row, kept as sorted samples instead of nodes.

A node is keyed on (token, next token), because a position predicts one token: two samples part one token before they
differ. In sorted order the sample that shares most with another is its neighbour, so no node object is needed.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np

_END = np.array([0xFFFFFFFF], dtype=">u4")


def sort_key(token_ids: np.ndarray) -> bytes:
    """Bytes that compare as the tokens do; the end of a sample counts as a token of its own.

    Args:
        token_ids: int [tokens].
    """
    return token_ids.astype(">u4").tobytes() + _END.tobytes()


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a sample leaves what its row already holds."""

    parent: int
    """Number of the earlier sample that owns the last shared token; -1 when nothing is shared."""
    depth: int
    """Tokens shared, which are forwarded for the earlier sample; the rest is the sample's own tail."""
    num_tokens: int
    """Tokens of the whole sample."""

    @property
    def num_own(self) -> int:
        """Tokens this sample adds to its row."""
        return self.num_tokens - self.depth

    @property
    def num_pairs(self) -> int:
        """Attended (query, key) pairs the sample adds: the cost of its attention."""
        return (self.num_tokens * (self.num_tokens + 1) - self.depth * (self.depth + 1)) // 2


@dataclass(slots=True)
class PrefixTrie:
    """The samples of a row in order of arrival, each with the place where it forks."""

    forks: list[Fork] = field(default_factory=list)
    num_tokens: int = 0
    """Unique tokens: what the row forwards."""
    num_pairs: int = 0
    """Attended (query, key) pairs: what rows are balanced by."""
    _sorted: list[tuple[bytes, int]] = field(default_factory=list)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> Self:
        """The trie of samples with these keys, in this order."""
        trie = cls()
        for key in keys:
            trie.add(key)
        return trie

    def find(self, key: bytes) -> Fork:
        """Where a sample with this key would fork; changes nothing."""
        place = bisect_left(self._sorted, (key, 0))
        shared, near = 0, -1
        for other, number in self._sorted[max(place - 1, 0) : place + 1]:
            depth = _shared_nodes(key, other)
            if depth > shared:
                shared, near = depth, number
        while near >= 0 and shared <= self.forks[near].depth:
            near = self.forks[near].parent
        return Fork(near, shared, len(key) // 4 - 1)

    def add(self, key: bytes, fork: Fork | None = None) -> None:
        """Put a sample into the row, at `fork` when `find` was just asked for it."""
        fork = fork or self.find(key)
        insort(self._sorted, (key, len(self.forks)))
        self.forks.append(fork)
        self.num_tokens += fork.num_own
        self.num_pairs += fork.num_pairs


def _shared_nodes(left: bytes, right: bytes) -> int:
    size = min(len(left), len(right)) // 4
    differs = np.frombuffer(left, np.uint32, size) != np.frombuffer(right, np.uint32, size)
    first = int(differs.argmax())
    same = first if differs[first] else size
    return max(same - 1, 0)
