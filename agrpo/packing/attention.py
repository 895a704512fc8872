"""Exact attention over packed rows: each sample sees itself only, and no [tokens, tokens] mask is made."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

from agrpo.errors import BadInput

NAME = "agrpo_packed"


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within it the model's forward takes packed rows and needs `sample_bounds` (Row.bounds).

    Raises BadInput for models whose attention this cannot reproduce.
    """
    refuse_unpackable(model)
    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attend_packed)
    model.set_attn_implementation(NAME)
    try:
        if model.config._attn_implementation != NAME:
            raise BadInput(f"{type(model).__name__} does not let its attention be replaced: it cannot be packed")
        yield
    finally:
        model.set_attn_implementation(before)


def attend_packed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sample_bounds: tuple[int, ...] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each sample: query [1, heads, tokens, size], key and value with their own head count."""
    if sample_bounds is None:
        raise BadInput(f"this model attends to packed rows ({NAME}) while it is trained: give sample_bounds")
    grouped = query.shape[1] != key.shape[1]
    pieces = []
    for start, end in pairwise(sample_bounds):
        window = _window(end - start, sliding_window, query.device)
        piece = F.scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            attn_mask=window,
            is_causal=window is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=grouped,
        )
        pieces.append(piece)
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


def _window(num_tokens: int, width: int | None, device: torch.device) -> Tensor | None:
    """The band of a sliding window, bool [tokens, tokens]; None when the sample is short enough for plain causality."""
    if width is None or num_tokens <= width:
        return None
    everything = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device)
    return everything.tril().triu(1 - width)


def refuse_unpackable(model: PreTrainedModel) -> None:
    """Raise BadInput for models with layers that see more than one sample, or attention that is not plain softmax."""
    settings = model.config.get_text_config().to_dict()
    foreign = set(settings.get("layer_types") or []) - {"full_attention", "sliding_attention"}
    if foreign:
        raise BadInput(f"layers of type {', '.join(sorted(foreign))} cannot be packed: use a model with attention only")
    if settings.get("attn_logit_softcapping"):
        raise BadInput("attn_logit_softcapping is not supported by this attention: use a model without it")
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        raise BadInput("attention sinks are not supported: use a model without them")
