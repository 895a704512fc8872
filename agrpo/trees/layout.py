"""Where the tokens of a row lie: depth first, each sample's own tail in one piece.

The tail of a sample is followed by the tails that fork from it, the deepest fork first. Everything that has passed a
fork is therefore one contiguous range, and so are the tokens it shares: attention needs no copy of keys or values.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from agrpo.trees.trie import Fork


@dataclass(frozen=True, slots=True)
class Block:
    """Queries [first_query, end_query) that see the keys [first_key, end_key) of the same row."""

    first_query: int
    end_query: int
    first_key: int
    end_key: int
    causal: bool
    """True: both ranges are the same tail and a query sees keys up to itself. False: every query sees every key."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The trie's nodes between two branches, in row order."""

    starts: np.ndarray
    """First token of each segment, then the row's length, int64 [segments + 1]: the queries' cu_seqlens."""
    parents: np.ndarray
    """Segment before it on the path, -1 at a root, int64 [segments]."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a variable-length kernel wants: queries in row order, keys copied along each tail's path."""

    key_index: np.ndarray
    """Row index of every gathered key, int64 [keys]."""
    cu_queries: np.ndarray
    """Where each tail's queries begin, int64 [tails + 1]."""
    cu_keys: np.ndarray
    """Where each tail's keys begin in key_index, int64 [tails + 1]."""


@dataclass(frozen=True)
class TreeLayout:
    """How the samples of one row share its tokens."""

    forks: tuple[Fork, ...]
    """One a sample, in order of arrival."""
    starts: np.ndarray
    """First token of each sample's own tail, int64 [samples]."""
    ends: np.ndarray
    """End of everything that forks from the tail, itself included, int64 [samples]."""
    position_ids: np.ndarray
    """Distance of each token from the beginning of its samples, int64 [tokens]."""

    @property
    def num_tokens(self) -> int:
        """Tokens forwarded."""
        return len(self.position_ids)

    @property
    def num_pairs(self) -> int:
        """Attended (query, key) pairs."""
        return sum(fork.num_pairs for fork in self.forks)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Samples that fork from each sample's tail, in row order; key -1: those that share nothing."""
        return _children(self.forks)

    @cached_property
    def blocks(self) -> list[Block]:
        """Every attended pair exactly once: one causal block a tail, one full block a fork."""
        blocks = []
        for sample, fork in enumerate(self.forks):
            start = int(self.starts[sample])
            if fork.num_own:
                blocks.append(Block(start, start + fork.num_own, start, start + fork.num_own, True))
            for depth, (first, last) in _by_depth(self.forks, self.children.get(sample, ())).items():
                queries = int(self.starts[first]), int(self.ends[last])
                if queries[0] < queries[1]:
                    blocks.append(Block(*queries, start, start + depth - fork.depth, False))
        return blocks

    @cached_property
    def segments(self) -> Segments:
        """Tails cut wherever another tail forks."""
        starts, parents = [], []
        ending_at: dict[tuple[int, int], int] = {}
        for sample in np.lexsort((np.arange(len(self.forks)), self.starts)):
            fork = self.forks[sample]
            cuts = {self.forks[child].depth for child in self.children.get(int(sample), ())}
            bounds = sorted({fork.depth, fork.num_tokens} | cuts)
            parent = ending_at.get((fork.parent, fork.depth), -1)
            for begin, end in pairwise(bounds):
                starts.append(int(self.starts[sample]) + begin - fork.depth)
                parents.append(parent)
                parent = ending_at[int(sample), end] = len(starts) - 1
        return Segments(np.array([*starts, self.num_tokens]), np.array(parents, dtype=np.int64))

    def locate(self, sample: int, positions: np.ndarray) -> np.ndarray:
        """Row index of a sample's tokens.

        Args:
            sample: number of the sample in order of arrival.
            positions: places in the sample, int [n].
        """
        bounds, shifts = [], []
        while sample >= 0:
            fork = self.forks[sample]
            bounds.append(fork.depth)
            shifts.append(int(self.starts[sample]) - fork.depth)
            sample = fork.parent
        owner = np.searchsorted(np.array(bounds[::-1]), positions, side="right") - 1
        return np.asarray(positions + np.array(shifts[::-1])[owner])

    @cached_property
    def tails(self) -> np.ndarray:
        """Samples that have tokens of their own, in row order, int64 [tails]."""
        own = np.array([fork.num_own > 0 for fork in self.forks], dtype=bool)
        return np.asarray(np.flatnonzero(own)[np.argsort(self.starts[own])])

    @cached_property
    def previous(self) -> np.ndarray:
        """The token before each one on its path, -1 at a root, int64 [tokens]."""
        before = np.arange(-1, self.num_tokens - 1)
        for sample in self.tails:
            fork = self.forks[sample]
            before[self.starts[sample]] = self.locate(fork.parent, np.array([fork.depth - 1]))[0] if fork.depth else -1
        return before

    @cached_property
    def gathered(self) -> Gathered:
        """The row as one causal attention a tail, aligned at its last token, over keys gathered along its path."""
        paths = [self.locate(sample, np.arange(self.forks[sample].num_tokens)) for sample in self.tails]
        queries = np.append(self.starts[self.tails], self.num_tokens)
        return Gathered(np.concatenate([np.empty(0, np.int64), *paths]), queries, np.cumsum([0, *map(len, paths)]))

    @cached_property
    def last_reader(self) -> np.ndarray:
        """End of the range of tokens that have each token on their path: j is seen by i when j <= i < last_reader[j].

        int64 [tokens].
        """
        last = np.empty(self.num_tokens, np.int64)
        for sample, fork in enumerate(self.forks):
            start, position = int(self.starts[sample]), fork.num_tokens
            end = start + fork.num_own
            for child in self.children.get(sample, ()):
                depth = self.forks[child].depth
                last[start + depth - fork.depth : start + position - fork.depth] = end
                position, end = depth, max(end, int(self.ends[child]))
            last[start : start + position - fork.depth] = end
        return last


def lay_out(forks: list[Fork]) -> TreeLayout:
    """Give every tail its place in the row."""
    children = _children(forks)
    starts, ends = np.zeros(len(forks), np.int64), np.zeros(len(forks), np.int64)
    pending, place = [(child, False) for child in reversed(children.get(-1, ()))], 0
    position_ids: list[np.ndarray] = [np.empty(0, np.int64)]
    while pending:
        sample, done = pending.pop()
        if done:
            ends[sample] = place
            continue
        fork = forks[sample]
        starts[sample] = place
        place += fork.num_own
        position_ids.append(np.arange(fork.depth, fork.num_tokens))
        pending.append((sample, True))
        pending.extend((child, False) for child in reversed(children.get(sample, ())))
    return TreeLayout(tuple(forks), starts, ends, np.concatenate(position_ids))


def _children(forks: list[Fork] | tuple[Fork, ...]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for sample, fork in enumerate(forks):
        children.setdefault(fork.parent, []).append(sample)
    for siblings in children.values():
        siblings.sort(key=lambda sample: -forks[sample].depth)
    return children


def _by_depth(forks: tuple[Fork, ...], siblings: list[int] | tuple[()]) -> dict[int, tuple[int, int]]:
    """The first and the last of the siblings that fork at each depth."""
    found: dict[int, tuple[int, int]] = {}
    for sample in siblings:
        depth = forks[sample].depth
        found[depth] = (found.get(depth, (sample, sample))[0], sample)
    return found
