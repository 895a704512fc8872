"""The gated delta rule over a tree: every segment starts from the state in which its parent ended.

    S_t = exp(g_t) S_{t-1};   u_t = beta_t (v_t - S_t^T k_t);   S_t += k_t u_t^T;   o_t = S_t^T q_t

Segments of equal depth run together; gradients flow through the shared parents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from agrpo.trees import TreeLayout

CHUNK = 64
"""Tokens solved for at once."""


@dataclass(frozen=True, slots=True)
class Level:
    """All segments of one depth."""

    tokens: Tensor
    """Their tokens, segment after segment, int64 [level tokens]."""
    bounds: tuple[int, ...]
    """Where each begins in `tokens` [segments + 1]."""
    cu_seqlens: Tensor
    """The same on the device, int64 [segments + 1]."""
    parents: Tensor
    """Their parents among the segments of the level before, int64 [segments]; unused in the first."""


@dataclass(frozen=True, slots=True)
class SegmentTree:
    """A row's segments by depth, and the way back to row order."""

    levels: tuple[Level, ...]
    order: Tensor
    """Place of each token in the levels laid end to end, int64 [tokens]."""
    previous: Tensor
    """The token before each one on its path; the number of tokens stands for none, int64 [tokens]."""


def prepare(layout: TreeLayout, device: torch.device) -> SegmentTree:
    """What layers that are not attention need of a row."""
    starts, parents = layout.segments.starts, layout.segments.parents
    depth = np.zeros(len(parents), np.int64)
    for segment, parent in enumerate(parents):
        depth[segment] = depth[parent] + 1 if parent >= 0 else 0
    rank = np.zeros(len(parents), np.int64)
    levels, laid = [], []
    for number in range(depth.max() + 1):
        members = np.flatnonzero(depth == number)
        rank[members] = np.arange(len(members))
        tokens = np.concatenate([np.arange(starts[member], starts[member + 1]) for member in members])
        bounds = np.cumsum([0, *(starts[members + 1] - starts[members])])
        laid.append(tokens)
        arrays = tokens, bounds, rank[parents[members]]
        on_device = [torch.as_tensor(array, device=device) for array in arrays]
        levels.append(Level(on_device[0], tuple(bounds.tolist()), on_device[1], on_device[2]))
    order = np.argsort(np.concatenate(laid))
    previous = np.where(layout.previous < 0, layout.num_tokens, layout.previous)
    return SegmentTree(tuple(levels), torch.as_tensor(order, device=device), torch.as_tensor(previous, device=device))


Parts = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""query, key [tokens, heads, key size], value [tokens, heads, value size], log decay and beta [tokens, heads]."""

Rule = Callable[[Parts, Level, Tensor], tuple[Tensor, Tensor]]
"""(parts of a level, level, first states [segments, heads, key size, value size]) -> (out, last states)."""


def tree_delta_rule(parts: Parts, tree: SegmentTree, rule: Rule | None = None) -> Tensor:
    """The rule for a whole row, [tokens, heads, value size]; queries and keys are normalised here.

    Args:
        rule: for one level; None: flash-linear-attention's kernel on a GPU if it is installed, else PyTorch's own.
    """
    query, key, value, decay, beta = parts
    wide = torch.promote_types(value.dtype, torch.float32)
    key = _unit(key.to(wide))
    query = _unit(query.to(wide)) * query.shape[-1] ** -0.5
    wide_parts = query, key, value.to(wide), decay.to(wide), beta.to(wide)
    rule = rule or _best_rule(value.device.type)
    states = value.new_zeros(len(tree.levels[0].parents), *key.shape[1:], value.shape[-1], dtype=wide)
    found = []
    for number, level in enumerate(tree.levels):
        states = states[level.parents] if number else states
        of_level = tuple(part.index_select(0, level.tokens) for part in wide_parts)
        out, states = rule(of_level, level, states)  # type: ignore[arg-type]  # five parts
        found.append(out)
    return torch.cat(found).index_select(0, tree.order).to(value.dtype)


def chunked_rule(parts: Parts, level: Level, states: Tensor) -> tuple[Tensor, Tensor]:
    """A `Rule` in plain PyTorch, segment by segment."""
    found, last = [], []
    for segment, (first, end) in enumerate(pairwise(level.bounds)):
        state = states[segment]
        for begin in range(first, end, CHUNK):
            chunk = slice(begin, min(begin + CHUNK, end))
            query, key, value, decay, beta = (part[chunk].transpose(0, 1) for part in parts)
            out, state = _chunk(query, key, value, decay, beta, state)
            found.append(out.transpose(0, 1))
        last.append(state)
    return torch.cat(found), torch.stack(last)


def _chunk(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk, everything [heads, tokens, ..]: the corrections u solve a triangular system, the rest are products."""
    passed = decay.cumsum(-1)
    between = (passed.unsqueeze(-1) - passed.unsqueeze(-2)).tril().exp().tril()
    since_start = passed.exp().unsqueeze(-1)
    learning = beta.unsqueeze(-1)
    system = learning * (key @ key.transpose(-1, -2)) * between
    wanted = learning * (value - since_start * (key @ state))
    corrections = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = since_start * (query @ state) + ((query @ key.transpose(-1, -2)) * between) @ corrections
    to_end = (passed[..., -1:] - passed).exp().unsqueeze(-1)
    return out, since_start[..., -1:, :] * state + (to_end * key).transpose(-1, -2) @ corrections


def _unit(states: Tensor) -> Tensor:
    return states * torch.rsqrt(states.square().sum(-1, keepdim=True) + 1e-6)


@cache
def _best_rule(device_type: str) -> Rule:
    if device_type != "cuda":
        return chunked_rule
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError:
        return chunked_rule

    def fused(parts: Parts, level: Level, states: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, decay, beta = (part.unsqueeze(0) for part in parts)
        half = torch.bfloat16
        out, last = chunk_gated_delta_rule(
            query.to(half),
            key.to(half),
            value.to(half),
            g=decay,
            beta=beta,
            scale=1.0,
            initial_state=states,
            output_final_state=True,
            cu_seqlens=level.cu_seqlens,
        )
        return out[0].to(states.dtype), last

    return fused
