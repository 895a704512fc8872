"""Switch a model to trees, and refuse the models for which that would not be exact."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from agrpo.attention import recurrence
from agrpo.attention.backends import Backend, Needs, choose, load
from agrpo.attention.deltanet import TreeGatedDeltaNet, replace_layers
from agrpo.errors import BadInput
from agrpo.trees import TreeLayout


@dataclass(frozen=True, slots=True)
class TreeAttention:
    """How a model attends once `install` has switched it."""

    name: str
    """Of the backend."""
    backend: Backend
    recurrent: bool
    """The model has Gated DeltaNet layers."""

    def prepare(self, layout: TreeLayout, device: torch.device) -> dict[str, Any]:
        """Keyword arguments for the model's forward over a row with this layout."""
        prepared = {"tree": self.backend.prepare(layout, device)}
        return prepared | ({"segments": recurrence.prepare(layout, device)} if self.recurrent else {})


def install(model: PreTrainedModel, name: str | None = None, *, needs: Needs | None = None) -> TreeAttention:
    """Switch every layer of a model to trees; from then on its forward wants `**attention.prepare(layout, device)`.

    Args:
        name: backend, None for the best that can serve (backends.BACKENDS).
        needs: None reads device and dtype off the weights; with autocast give its dtype.

    Raises:
        BadInput: a layer cannot be trained in trees, or the backend cannot serve the model.
    """
    recurrent = replace_layers(model) > 0
    _refuse(model, recurrent)
    chosen = choose(needs or needs_of(model), name)
    backend = load(chosen)
    registered = chosen.replace(".", "_").replace(":", "_")
    AttentionInterface.register(registered, _bridge(backend))
    model.set_attn_implementation(registered)
    return TreeAttention(chosen, backend, recurrent)


@contextmanager
def tree_attention(
    model: PreTrainedModel, name: str | None = None, *, needs: Needs | None = None
) -> Iterator[TreeAttention]:
    """`install` for the length of a block; then attention is what it was (Gated DeltaNet layers stay replaced)."""
    before = model.config._attn_implementation
    try:
        yield install(model, name, needs=needs)
    finally:
        model.set_attn_implementation(before)


def needs_of(model: PreTrainedModel) -> Needs:
    """What the model asks of its attention, by its weights and its config."""
    settings = model.config.get_text_config().to_dict()
    weight = next(model.parameters())
    return Needs(weight.device, weight.dtype, softcap=settings.get("attn_logit_softcapping") is not None)


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
            raise BadInput("tree attention got no tree; pass what TreeAttention.prepare(layout, device) gives")
        if s_aux is not None:
            raise BadInput("attention sinks are not supported by tree attention; choose a model without them")
        if dropout:
            raise BadInput(f"attention dropout is {dropout}; tree attention has none, set attention_dropout to 0")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        # Rotations and norms in float32 undo autocast for some of the three.
        kind = query.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
        parts = query.to(dtype), key.to(dtype), value.to(dtype)
        out = backend.attend(*parts, tree, scale, sliding_window, softcap)
        return out.transpose(1, 2).contiguous(), None

    return attention


def _refuse(model: PreTrainedModel, recurrent: bool) -> None:
    """Stop at layers that read other tokens in a way that a tree would not keep."""
    kind = type(model).__name__
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    for name, _ in decoder.named_parameters():
        if name.rpartition(".")[2] in ("sinks", "sink"):
            raise BadInput(f"{kind} has attention sinks ({name}); choose a model without them")
    kinds = {"full_attention", "sliding_attention"} | ({"linear_attention"} if recurrent else set())
    if foreign := set(model.config.get_text_config().to_dict().get("layer_types") or []) - kinds:
        raise BadInput(f"{kind} has layers of type {', '.join(sorted(foreign))}; choose a model without them")
    known = {id(layer.conv1d) for layer in decoder.modules() if isinstance(layer, TreeGatedDeltaNet)}
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Conv1d) and id(module) not in known:
            raise BadInput(
                f"{kind} mixes tokens by a convolution ({name}); choose a model of attention and Gated DeltaNet layers"
            )
