"""Tree attention on a GPU by PyTorch's own variable-length kernel: keys and values gathered along each path."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agrpo.attention.backends import Needs
from agrpo.trees import TreeLayout


@dataclass(frozen=True, slots=True)
class VarlenTree:
    """A row for a kernel that takes one causal attention a tail, aligned at its last token."""

    key_index: Tensor | None
    """Row index of every key, int64 [keys]; None when nothing is shared and keys are taken as they lie."""
    cu_queries: Tensor
    """int32 [tails + 1]"""
    cu_keys: Tensor
    """int32 [tails + 1]"""
    max_queries: int
    max_keys: int


Kernel = Callable[[Tensor, Tensor, Tensor, VarlenTree, float, int | None, float | None], Tensor]
"""(query [tokens, heads, size], key, value [keys, key heads, size], tree, scale, window, softcap) -> like query."""


@dataclass(frozen=True, slots=True)
class VarlenBackend:
    """A variable-length kernel as a backend."""

    refuses: Callable[[Needs], str | None]
    kernel: Kernel

    def refusal(self, needs: Needs) -> str | None:
        """See `Backend.refusal`."""
        return self.refuses(needs)

    def prepare(self, layout: TreeLayout, device: torch.device) -> VarlenTree:
        """See `Backend.prepare`."""
        gathered = layout.gathered
        shared = len(gathered.key_index) > layout.num_tokens
        return VarlenTree(
            torch.as_tensor(gathered.key_index, device=device) if shared else None,
            torch.as_tensor(gathered.cu_queries, dtype=torch.int32, device=device),
            torch.as_tensor(gathered.cu_keys, dtype=torch.int32, device=device),
            _longest(gathered.cu_queries),
            _longest(gathered.cu_keys),
        )

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: VarlenTree,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """See `Backend.attend`."""
        queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
        if tree.key_index is not None:
            keys, values = keys.index_select(0, tree.key_index), values.index_select(0, tree.key_index)
        return self.kernel(queries, keys, values, tree, scale, window, softcap).transpose(0, 1).unsqueeze(0)


def half_on_gpu(needs: Needs) -> str | None:
    """Why a flash kernel cannot serve the model's device and dtype."""
    if needs.device.type != "cuda":
        return f"the model lies on {needs.device.type}, not on a GPU"
    if needs.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in bfloat16 or float16, the model in {needs.dtype}"
    return None


def _refuses(needs: Needs) -> str | None:
    if needs.softcap:
        return "it has no soft-capping"
    if torch.version.hip:
        return "its sliding windows and shapes are not tested on ROCm"
    return half_on_gpu(needs)


def _torch_varlen(
    query: Tensor, key: Tensor, value: Tensor, tree: VarlenTree, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(  # type: ignore[return-value]  # a pair only when the log-sum-exp is asked for
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        tree.cu_queries,
        tree.cu_keys,
        tree.max_queries,
        tree.max_keys,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _longest(bounds: np.ndarray) -> int:
    return int(np.diff(bounds).max(initial=0))


BACKEND = VarlenBackend(_refuses, _torch_varlen)
