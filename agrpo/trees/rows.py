"""A packed row: its tokens once each, and one entry for every loss term."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agrpo.trees.layout import TreeLayout, lay_out
from agrpo.trees.trie import Fork, PrefixTrie, sort_key


@dataclass(frozen=True, slots=True)
class TreeRow:
    """What one rank forwards in one micro-batch."""

    input_ids: np.ndarray
    """Unique tokens, depth first, int64 [tokens]."""
    layout: TreeLayout
    """Positions, and who attends to whom."""
    positions: np.ndarray
    """Index in the row of the token that predicts each term, int64 [terms]; several terms may share one."""
    targets: np.ndarray
    """The trained token, int64 [terms]."""
    samples: np.ndarray
    """Which sample of the row each term belongs to, in the order given, int64 [terms]."""
    num_raw_tokens: int
    """Tokens of the samples before packing."""

    @property
    def packing_ratio(self) -> float:
        """Tokens before packing / forwarded."""
        return self.num_raw_tokens / self.layout.num_tokens


def pack(samples: Sequence[tuple[np.ndarray, np.ndarray]], *, share: bool = True) -> TreeRow:
    """Pack samples, each (token_ids int [tokens], trained bool [tokens]), into one row in the given order.

    Loss terms are in the order of the samples and, inside one, of its trained tokens. Without samples the row is one
    dummy token, so that a rank skips no collective.

    Args:
        share: False forwards every sample whole (plain padding-free packing).
    """
    held = samples or [(np.zeros(1, np.int32), np.zeros(1, bool))]
    shared = PrefixTrie.of(sort_key(token_ids) for token_ids, _ in held if share).forks
    layout = lay_out(shared or [Fork(-1, 0, len(token_ids)) for token_ids, _ in held])
    input_ids = np.empty(layout.num_tokens, np.int64)
    positions, targets, owners = [_NONE], [_NONE], [_NONE]
    for number, (token_ids, trained) in enumerate(held):
        start, fork = layout.starts[number], layout.forks[number]
        input_ids[start : start + fork.num_own] = token_ids[fork.depth :]
        terms = np.flatnonzero(trained)
        positions.append(layout.locate(number, terms - 1))
        targets.append(token_ids[terms])
        owners.append(np.full(len(terms), number))
    num_raw_tokens = sum(len(token_ids) for token_ids, _ in samples)
    return TreeRow(input_ids, layout, _joined(positions), _joined(targets), _joined(owners), num_raw_tokens)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts, dtype=np.int64)


_NONE = np.empty(0, np.int64)
