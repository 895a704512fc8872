"""Tree attention on a GPU by PyTorch's flex attention: no gathered keys, any dtype, soft-capping."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from agrpo.attention.backends import Needs
from agrpo.trees import TreeLayout

SIDE = 128
"""Queries, and keys, of a square of the block mask."""


@dataclass(slots=True)
class FlexTree:
    """A row's block masks, made once for each kind of layer."""

    layout: TreeLayout
    last_reader: Tensor
    position_ids: Tensor
    _masks: dict[int | None, BlockMask] = field(default_factory=dict)

    def mask(self, window: int | None) -> BlockMask:
        """The mask of layers with this sliding window."""
        if window not in self._masks:
            self._masks[window] = self._make(window)
        return self._masks[window]

    def _make(self, window: int | None) -> BlockMask:
        full, partial = squares(self.layout, window)
        length = self.layout.num_tokens
        return BlockMask.from_kv_blocks(
            *_listed(partial, self.last_reader.device),
            *_listed(full, self.last_reader.device),
            BLOCK_SIZE=SIDE,
            mask_mod=self._visible(window),
            seq_lengths=(length, length),
        )

    def _visible(self, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        last_reader, position_ids = self.last_reader, self.position_ids

        def on_path(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < last_reader[key])

        if window is None:
            return on_path

        def in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return on_path(batch, head, query, key) & (position_ids[query] - position_ids[key] < window)

        return in_window


def squares(layout: TreeLayout, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Squares of SIDE x SIDE pairs that are wholly, and perhaps partly, visible, bool [query squares, key squares]."""
    starts = np.arange(0, layout.num_tokens, SIDE)
    last, positions = layout.last_reader, layout.position_ids
    below = np.tri(len(starts), k=-1, dtype=bool)
    seen = below & (np.maximum.reduceat(last, starts) > starts[:, None]) | np.eye(len(starts), dtype=bool)
    full = below & (np.minimum.reduceat(last, starts) >= starts[:, None] + SIDE)
    if window is not None:
        low, high = np.minimum.reduceat(positions, starts), np.maximum.reduceat(positions, starts)
        seen &= low[:, None] - high < window
        full &= high[:, None] - low < window
    return full, seen & ~full


def _listed(squares: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Number of marked squares in each line, and their columns first, int32 [1, 1, side] and [1, 1, side, side]."""
    order = np.argsort(~squares, axis=1, kind="stable").astype(np.int32)
    count = squares.sum(1).astype(np.int32)
    return torch.as_tensor(count, device=device)[None, None], torch.as_tensor(order, device=device)[None, None]


class FlexBackend:
    """Slower than a flash kernel, but it takes float32 and soft-capping and copies no keys."""

    def refusal(self, needs: Needs) -> str | None:
        """See `Backend.refusal`."""
        return None if needs.device.type == "cuda" else f"the model lies on {needs.device.type}, not on a GPU"

    def prepare(self, layout: TreeLayout, device: torch.device) -> FlexTree:
        """See `Backend.prepare`."""
        last_reader = torch.as_tensor(layout.last_reader, dtype=torch.int32, device=device)
        return FlexTree(layout, last_reader, torch.as_tensor(layout.position_ids, dtype=torch.int32, device=device))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: FlexTree,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """See `Backend.attend`."""
        kernel = _compiled() if query.device.type == "cuda" else _eager
        bend = None if softcap is None else _bend(softcap)
        grouped = query.shape[1] != key.shape[1]
        settings = {"score_mod": bend, "block_mask": tree.mask(window), "scale": scale, "enable_gqa": grouped}
        out: Tensor = kernel(query, key, value, **settings)
        return out


@cache
def _bend(softcap: float) -> Callable[..., Tensor]:
    def bend(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return bend


_eager: Callable[..., Tensor] = flex_attention


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_eager, dynamic=True)


BACKEND = FlexBackend()
