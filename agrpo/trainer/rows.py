"""The tensors of a row: the prefix tree of several samples, and their loss terms."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agrpo.records import TrainingSequence
from agrpo.trees import TreeLayout, pack

NO_ID = -1
"""Pads lists of token ids."""
_NONE: list[np.ndarray | None] = [None]


@dataclass(frozen=True, slots=True)
class Row:
    """What one rank forwards in one micro-batch; "terms" are trained tokens, sample after sample."""

    input_ids: Tensor
    """Every token once, int64 [1, tokens]."""
    position_ids: Tensor
    """Place of each token in its samples, int64 [1, tokens]."""
    layout: TreeLayout
    """Who attends to whom."""
    positions: Tensor
    """Index in the row of the token that predicts each term, which several may share, int64 [terms]."""
    targets: Tensor
    """The trained token, int64 [terms]."""
    samples: Tensor
    """Which sample of the row each term belongs to, int64 [terms]."""
    advantages: Tensor
    """float32 [terms]"""
    sampler_log_probs: Tensor
    """NaN where unknown, float32 [terms]."""
    top_ids: Tensor
    """The sampler's most likely tokens, padded with -1, int64 [terms, K]."""
    sampler_top_log_probs: Tensor
    """Padded with -inf, float32 [terms, K]."""
    candidates: Tensor | None
    """Candidate sets padded with -1; a line of -1 is the whole vocabulary, int64 [terms, C]."""
    num_samples: int

    @property
    def num_tokens(self) -> int:
        """Forwarded tokens, shared ones once; 0 for an empty row, whose single token is only a dummy."""
        return self.layout.num_tokens if self.num_samples else 0

    @property
    def num_terms(self) -> int:
        """Trained tokens."""
        return len(self.targets)

    def to(self, device: torch.device) -> "Row":
        """The same row on a device."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def build_row(sequences: Sequence[TrainingSequence]) -> Row:
    """Pack samples into one tree. Without samples the row is one dummy token, so that no collective is skipped."""
    tree = pack([(sequence.token_ids, sequence.trained) for sequence in sequences])
    trained = [np.flatnonzero(sequence.trained) for sequence in sequences]
    tops = [top for sequence in sequences for top in _top(sequence)]
    return Row(
        input_ids=torch.from_numpy(tree.input_ids).unsqueeze(0),
        position_ids=torch.from_numpy(tree.layout.position_ids).unsqueeze(0),
        layout=tree.layout,
        positions=torch.from_numpy(tree.positions),
        targets=torch.from_numpy(tree.targets),
        samples=torch.from_numpy(tree.samples),
        advantages=_floats([np.full(len(at), s.advantage) for s, at in zip(sequences, trained, strict=True)]),
        sampler_log_probs=_floats([sequence.log_probs[at] for sequence, at in zip(sequences, trained, strict=True)]),
        top_ids=_padded([ids for ids, _ in tops], NO_ID, np.int64),
        sampler_top_log_probs=_padded([log_probs for _, log_probs in tops], -np.inf, np.float32),
        candidates=_candidates(sequences),
        num_samples=len(sequences),
    )


def _top(sequence: TrainingSequence) -> list[tuple[np.ndarray, np.ndarray]]:
    """Top tokens of every term, only those with a log-probability and inside the term's candidate set."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.float32))
    if sequence.top_ids is None or sequence.top_log_probs is None:
        return [nothing] * sequence.num_trained
    candidates: Sequence[np.ndarray | None] = sequence.candidates or _NONE * len(sequence.top_ids)
    kept = []
    for ids, log_probs, allowed in zip(sequence.top_ids, sequence.top_log_probs, candidates, strict=True):
        keep = np.isfinite(log_probs) if allowed is None else np.isfinite(log_probs) & np.isin(ids, allowed)
        kept.append((ids[keep], log_probs[keep]))
    return kept


def _candidates(sequences: Sequence[TrainingSequence]) -> Tensor | None:
    if all(sequence.candidates is None for sequence in sequences):
        return None
    whole_vocabulary = np.empty(0, np.int64)
    sets = [allowed for s in sequences for allowed in (s.candidates or [whole_vocabulary] * s.num_trained)]
    return _padded(sets, NO_ID, np.int64)


def _floats(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32))


def _padded(lists: Sequence[np.ndarray], fill: float, dtype: type[np.generic]) -> Tensor:
    """Ragged lists as one rectangle [lists, longest]."""
    width = max((len(values) for values in lists), default=0)
    rectangle = np.full((len(lists), width), fill, dtype=dtype)
    for line, values in zip(rectangle, lists, strict=True):
        line[: len(values)] = values
    return torch.from_numpy(rectangle)
