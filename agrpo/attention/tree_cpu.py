"""Exact tree attention on the CPU: one rectangle of queries and keys at a time, merged by log-sum-exp.

Shared keys and values are read where they lie, once for everything that has passed their fork; nothing of the size
[tokens, tokens] is ever held.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agrpo.attention.backends import Needs
from agrpo.attention.tiles import Tile, tiles
from agrpo.trees import TreeLayout


@dataclass(slots=True)
class CpuTree:
    """A row's tiles, made once for each kind of layer."""

    layout: TreeLayout
    _tiles: dict[tuple[int | None, int | None], list[Tile]] = field(default_factory=dict)

    def tiles(self, window: int | None, chunk: int | None) -> list[Tile]:
        """The tiles of layers with this sliding window."""
        if (window, chunk) not in self._tiles:
            self._tiles[window, chunk] = tiles(self.layout, window, chunk)
        return self._tiles[window, chunk]


class CpuBackend:
    """PyTorch's own CPU kernel on one rectangle at a time; its own arithmetic where scores are soft-capped."""

    def refusal(self, needs: Needs) -> str | None:
        """It serves whatever lies on a CPU."""
        return None if needs.device.type == "cpu" else f"the model lies on {needs.device.type}, not on a CPU"

    def prepare(self, layout: TreeLayout, device: torch.device) -> CpuTree:
        """The row's tiles are made by the first layer that needs them."""
        return CpuTree(layout)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: CpuTree,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """See `Backend.attend`."""
        grouped = query.reshape(key.shape[1], query.shape[1] // key.shape[1], *query.shape[2:])
        plan = tree.tiles(window, None if softcap is None else _CHUNK)
        keys, values = key.transpose(0, 1), value.transpose(0, 1)
        out: Tensor = _TreeAttention.apply(grouped, keys, values, plan, scale, softcap)  # type: ignore[no-untyped-call]
        return out.reshape(*query.shape[:3], -1)


BACKEND = CpuBackend()

# Queries of a tile whose scores are held (soft-capping): the scores are [heads, 128, keys].
_CHUNK = 128

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _TreeAttention(torch.autograd.Function):
    """Queries are [key heads, heads of a group, tokens, head size], keys and values [key heads, 1, tokens, size]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: list[Tile], scale: float, softcap: float | None
    ) -> Tensor:
        """Each query's mix of the values that it may see [key heads, heads of a group, tokens, value size]."""
        wide = torch.promote_types(query.dtype, torch.float32)
        out = query.new_empty(*query.shape[:3], value.shape[3], dtype=wide)
        lse = out.new_empty(query.shape[:3])
        for tile in plan:
            _merge(out, lse, tile, *_tile_forward(tile, _select(tile, query, key, value), scale, softcap))
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.plan, ctx.scale, ctx.softcap = plan, scale, softcap
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients shaped like queries, keys and values; scores are computed again, tile by tile."""
        query, key, value, out, lse = ctx.saved_tensors
        grad_query = torch.empty_like(query, dtype=lse.dtype)
        grad_key, grad_value = (torch.zeros_like(part, dtype=lse.dtype) for part in (key, value))
        for tile in ctx.plan:
            rows, columns = slice(tile.first_query, tile.end_query), slice(tile.first_key, tile.end_key)
            above = grad[:, :, rows], out[:, :, rows], lse[:, :, rows]
            parts = _tile_backward(tile, above, _select(tile, query, key, value), ctx.scale, ctx.softcap)
            _accumulate(grad_query[:, :, rows], parts[0], fresh=tile.own)
            grad_key[:, :, columns] += parts[1].sum(1, keepdim=True)
            grad_value[:, :, columns] += parts[2].sum(1, keepdim=True)
        return *(part.to(query.dtype) for part in (grad_query, grad_key, grad_value)), None, None, None


Parts = tuple[Tensor, Tensor, Tensor]


def _select(tile: Tile, query: Tensor, key: Tensor, value: Tensor) -> Parts:
    """The tile's queries, and its keys and values repeated over the heads of a group without a copy."""
    columns = slice(tile.first_key, tile.end_key)
    group = query.shape[1]
    return (
        query[:, :, tile.first_query : tile.end_query],
        key[:, :, columns].expand(-1, group, -1, -1),
        value[:, :, columns].expand(-1, group, -1, -1),
    )


def _merge(out: Tensor, lse: Tensor, tile: Tile, part: Tensor, part_lse: Tensor) -> None:
    """Add a tile to the attention of its queries; a query's own tile comes first and overwrites."""
    rows = slice(tile.first_query, tile.end_query)
    if tile.own:
        out[:, :, rows], lse[:, :, rows] = part, part_lse
        return
    total = torch.logaddexp(lse[:, :, rows], part_lse)
    out[:, :, rows] *= (lse[:, :, rows] - total).exp_().unsqueeze(-1)
    out[:, :, rows].addcmul_(part.to(out.dtype), (part_lse - total).exp_().unsqueeze(-1))
    lse[:, :, rows] = total


def _accumulate(total: Tensor, part: Tensor, *, fresh: bool) -> None:
    if fresh:
        total.copy_(part)
    else:
        total += part


def _tile_forward(tile: Tile, parts: Parts, scale: float, softcap: float | None) -> tuple[Tensor, Tensor]:
    if softcap is None:
        causal, mask = tile.own and tile.band is None, _additive(tile, parts[0])
        attended: tuple[Tensor, Tensor] = _flash(*parts, 0.0, causal, attn_mask=mask, scale=scale)
        return attended
    scores, _ = _capped_scores(tile, parts, scale, softcap)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp_() @ parts[2].to(lse.dtype), lse


def _tile_backward(tile: Tile, above: Parts, parts: Parts, scale: float, softcap: float | None) -> Parts:
    """Gradients of the tile's queries, keys and values; `above` is (gradient, output, log-sum-exp) of whole paths."""
    grad, out, lse = above
    if softcap is None:
        causal, mask = tile.own and tile.band is None, _additive(tile, parts[0])
        grads: Parts = _flash_backward(grad, *parts, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
        return grads
    grad, out, query, key, value = (tensor.to(lse.dtype) for tensor in (grad, out, *parts))
    scores, slope = _capped_scores(tile, parts, scale, softcap)
    weights = (scores - lse.unsqueeze(-1)).exp_()
    pull = grad @ value.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)
    pull = pull.mul_(weights).mul_(slope)
    return pull @ key, pull.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ grad


def _capped_scores(tile: Tile, parts: Parts, scale: float, softcap: float) -> tuple[Tensor, Tensor]:
    """Soft-capped scores [.., queries, keys], and their derivative by the plain dot product."""
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    bent = (parts[0].to(wide) @ parts[1].to(wide).transpose(-1, -2)).mul_(scale / softcap).tanh_()
    scores = softcap * bent
    if tile.band is not None:
        scores.masked_fill_(~_visible(tile), -torch.inf)
    return scores, (1 - bent.square()).mul_(scale)


def _visible(tile: Tile) -> Tensor:
    """Which keys each query sees, bool [queries, keys]."""
    assert tile.band is not None
    offset, window = tile.band
    distance = torch.arange(tile.end_query - tile.first_query).unsqueeze(1) + offset
    distance = distance - torch.arange(tile.end_key - tile.first_key)
    return (distance >= 0) & (distance < window)


def _additive(tile: Tile, query: Tensor) -> Tensor | None:
    if tile.band is None:
        return None
    visible = _visible(tile)
    return query.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf).expand(1, 1, -1, -1)
