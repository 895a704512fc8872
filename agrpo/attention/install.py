"""Switch a model to tree attention, and refuse the models for which it would not be exact."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from agrpo.attention.backends import Backend, Needs, choose, load
from agrpo.errors import BadInput


def install(model: PreTrainedModel, name: str | None = None, *, device: torch.device | None = None) -> Backend:
    """Switch every attention layer of a model; from then on its forward wants `tree=backend.prepare(layout, device)`.

    Args:
        name: backend, None for the best that can serve (backends.BACKENDS).
        device: where the model will run; None: where its weights lie.

    Raises:
        BadInput: a layer cannot be trained in trees, or the backend cannot serve the model.
    """
    _refuse(model)
    chosen = choose(_needs(model, device), name)
    backend = load(chosen)
    registered = chosen.replace(".", "_").replace(":", "_")
    AttentionInterface.register(registered, _bridge(backend))
    model.set_attn_implementation(registered)
    return backend


def _bridge(backend: Backend) -> Callable[..., tuple[Tensor, None]]:
    """A backend as the function that transformers calls in every attention layer."""

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        tree: Any = None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        if tree is None:
            raise BadInput("tree attention got no tree; pass tree=backend.prepare(row.layout, device) to the model")
        if s_aux is not None:
            raise BadInput("attention sinks are not supported by tree attention; choose a model without them")
        if dropout:
            raise BadInput(f"attention dropout is {dropout}; tree attention has none, set attention_dropout to 0")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = backend.attend(query, key, value, tree, scale, sliding_window, softcap)
        return out.transpose(1, 2).contiguous(), None

    return attention


def _needs(model: PreTrainedModel, device: torch.device | None) -> Needs:
    config = model.config.get_text_config()
    softcap = "attn_logit_softcapping" in config.to_dict() and config.attn_logit_softcapping is not None
    weight = next(model.parameters())
    return Needs(device or weight.device, weight.dtype, softcap)


def _refuse(model: PreTrainedModel) -> None:
    """Stop at layers that read other tokens in a way that a tree would not keep."""
    for name, _ in model.named_parameters():
        if name.rpartition(".")[2] in ("sinks", "sink"):
            raise BadInput(f"{type(model).__name__} has attention sinks ({name}); choose a model without them")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d):
            raise BadInput(
                f"{type(model).__name__} mixes tokens by a convolution ({name}); "
                "choose a model of attention and Gated DeltaNet layers"
            )
