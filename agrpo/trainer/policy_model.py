"""The trained model: how it is loaded, made ready for rows, and identified by its weights."""

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from agrpo.attention import TreeAttention, needs_of, tree_attention
from agrpo.errors import BadInput
from agrpo.losses.head import FusedHead
from agrpo.pretrained import loading
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig

SCALED_LOGITS = ("logit_scale", "logits_scaling")
"""Settings of models that scale the logits after the head; the fused head does not."""


def load_policy(name: str, args: AsyncGRPOConfig) -> PreTrainedModel:
    """Load a model by name or path, of a vision-language checkpoint all; model_init_kwargs win over `args`."""
    keywords = {"dtype": args.dtype, "trust_remote_code": args.trust_remote_code, **_init_kwargs(args)}
    with loading("the model", name):
        config = AutoConfig.from_pretrained(
            name, **{key: keywords[key] for key in ("trust_remote_code", "revision") if key in keywords}
        )
        family = AutoModelForImageTextToText if _has_tower(config) else AutoModelForCausalLM
        model: PreTrainedModel = family.from_pretrained(name, **keywords)
    return model


def freeze_tower(model: PreTrainedModel) -> None:
    """Freeze all of a vision-language model but its text model, which alone is trained and published."""
    text = {name for name, _ in named_weights(model)}
    for name, parameter in model.named_parameters():
        if name not in text:
            parameter.requires_grad_(False)


def load_tokenizer(name: str, args: AsyncGRPOConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer, of the same revision as the model."""
    keywords = {key: value for key, value in _init_kwargs(args).items() if key == "revision"}
    with loading("the tokenizer", name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, trust_remote_code=args.trust_remote_code, **keywords
        )
    return tokenizer


def ready_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Padding on the left, and a pad token: the end token unless there is one."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def fuse_head(model: PreTrainedModel) -> FusedHead:
    """Fuse the model's head with the loss; returns the head, which gives logits as before when it is not asked.

    Raises BadInput for models without a linear head, or whose logits are scaled after it.
    """
    settings = model.config.get_text_config().to_dict()
    scaled = [name for name in SCALED_LOGITS if settings.get(name) not in (None, 1, 1.0)]
    if scaled:
        raise BadInput(f"{scaled[0]}={settings[scaled[0]]} scales the logits after the head: choose another model")
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if isinstance(head, FusedHead):
        return head
    if not isinstance(head, nn.Linear):
        raise BadInput(f"{type(model).__name__} has no linear head over the vocabulary: it cannot be trained here")
    fused = FusedHead.replacing(head, model.config.get_text_config())
    model.set_output_embeddings(fused)  # type: ignore[no-untyped-call]
    return fused


def in_trees(model: PreTrainedModel, args: AsyncGRPOConfig) -> AbstractContextManager[TreeAttention]:
    """Within it the model attends to prefix trees, on the device and in the precision that `args` train it in.

    Raises BadInput for models that cannot, and for an attention_backend that cannot serve them.
    """
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else model.dtype
    needs = replace(needs_of(model), device=args.device, dtype=dtype)
    return tree_attention(model, args.attention_backend, needs=needs)


def router_coefficient(model: PreTrainedModel, args: AsyncGRPOConfig) -> float:
    """Factor of the load-balancing loss, 0 for none. Raises BadInput when one is set for a model without experts."""
    settings = model.config.get_text_config().to_dict()
    if "router_aux_loss_coef" not in settings:
        if args.router_aux_loss_coef:
            raise BadInput(f"router_aux_loss_coef={args.router_aux_loss_coef}: {type(model).__name__} has no experts")
        return 0.0
    own = args.router_aux_loss_coef
    return float(settings["router_aux_loss_coef"] if own is None else own)


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The text model's parameters under the names of the saved model, each once (a tied head is the embedding), in
    name order."""
    named = sorted(model.named_parameters(), key=lambda pair: pair[0])
    if isinstance(model, PreTrainedModel) and _has_tower(model.config):
        parts: list[nn.Module] = [model.get_decoder(), model.get_output_embeddings()]  # type: ignore[no-untyped-call]
        text = {id(parameter) for part in parts for parameter in part.parameters()}
        named = [(name, parameter) for name, parameter in named if id(parameter) in text]
    yield from named


def digest_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of tensors and their names, in the order given."""
    digest = xxhash.xxh3_128()
    for name, parameter in named:
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _has_tower(config: PretrainedConfig) -> bool:
    return not {"vision_config", "audio_config"}.isdisjoint(config.to_dict())


def _init_kwargs(args: AsyncGRPOConfig) -> dict[str, Any]:
    given = args.model_init_kwargs
    return json.loads(given) if isinstance(given, str) else dict(given or {})
