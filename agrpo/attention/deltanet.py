"""Gated DeltaNet layers (Qwen3.5, Qwen3.6, Qwen3-Next) that read a tree instead of a sequence."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agrpo.attention.recurrence import SegmentTree, tree_delta_rule
from agrpo.errors import BadInput

LAYERS = ("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet", "Qwen3NextGatedDeltaNet")
"""Layers of transformers whose parameters `TreeGatedDeltaNet` can take over."""


class TreeGatedDeltaNet(nn.Module):
    """A Gated DeltaNet layer with the parameters of the given one, under the same names."""

    conv1d: nn.Conv1d
    norm: nn.Module
    out_proj: nn.Module
    A_log: Tensor
    dt_bias: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        for name, child in layer.named_children():
            self.add_module(name, child)
        for name, parameter in layer.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.num_heads: int = layer.num_v_heads
        self.num_key_heads: int = layer.num_k_heads
        self.key_size: int = layer.head_k_dim
        self.value_size: int = layer.head_v_dim
        self.activation: str = layer.activation
        # Qwen3-Next interleaves its projections by key head; its own method sorts them.
        self._sort = layer.fix_query_key_value_ordering if "in_proj_qkvz" in self._modules else None

    def forward(self, hidden_states: Tensor, *, segments: SegmentTree | None = None, **_: Any) -> Tensor:
        """Mix each token with its own path; [1, tokens, dim] in and out."""
        if segments is None:
            raise BadInput("tree attention got no tree; pass what TreeAttention.prepare(layout, device) gives")
        mixed, gate, beta, decay = self._project(hidden_states[0])
        mixed = self._convolve(mixed, segments.previous)
        sizes = [self.num_key_heads * self.key_size] * 2 + [self.num_heads * self.value_size]
        query, key, value = torch.split(mixed, sizes, dim=-1)
        groups = self.num_heads // self.num_key_heads
        query, key = (
            part.reshape(len(part), self.num_key_heads, self.key_size).repeat_interleave(groups, 1)
            for part in (query, key)
        )
        value = value.reshape(len(value), self.num_heads, self.value_size)
        out = tree_delta_rule((query, key, value, decay, beta), segments)
        out = self.norm(out.reshape(-1, self.value_size), gate.reshape(-1, self.value_size))
        projected: Tensor = self.out_proj(out.reshape(1, len(mixed), -1))
        return projected

    def _project(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mixed query, key and value, output gate, learning rate beta and log decay of every token."""
        if self._sort is None:
            names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            mixed, gate, learning, step = (self.get_submodule(name)(states) for name in names)
        else:
            joined = (self.get_submodule(name)(states).unsqueeze(0) for name in ("in_proj_qkvz", "in_proj_ba"))
            query, key, value, gate, learning, step = (part[0].flatten(1) for part in self._sort(*joined))
            mixed = torch.cat([query, key, value], dim=-1)
        wide = torch.promote_types(step.dtype, torch.float32)
        decay = -self.A_log.to(wide).exp() * F.softplus(step.to(wide) + self.dt_bias)
        return mixed, gate, learning.sigmoid(), decay

    def _convolve(self, states: Tensor, previous: Tensor) -> Tensor:
        """Depthwise convolution of each token with the ones before it on its path [tokens, channels]."""
        weight = self.conv1d.weight.squeeze(1)
        # A line of zeros stands for what lies before a root; it is its own predecessor.
        padded = torch.cat([states, states.new_zeros(1, states.shape[1])]).to(weight.dtype)
        before = torch.cat([previous, previous.new_full((1,), len(states))])
        out = padded[:-1] * weight[:, -1]
        at = previous
        for distance in range(2, weight.shape[1] + 1):
            out = out + padded.index_select(0, at) * weight[:, -distance]
            at = before[at]
        if self.conv1d.bias is not None:
            out = out + self.conv1d.bias
        return _ACTIVATIONS[self.activation](out).to(states.dtype)


_ACTIVATIONS = {"silu": F.silu, "swish": F.silu}


def replace_layers(model: nn.Module) -> int:
    """Put a TreeGatedDeltaNet in the place of every Gated DeltaNet layer; returns how many a model then has."""
    found = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ in LAYERS:
                setattr(parent, name, TreeGatedDeltaNet(child))
            found += type(getattr(parent, name)) is TreeGatedDeltaNet
    return found
