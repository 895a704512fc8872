"""Two-layer models of every kind that rows are packed for, with random weights."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from tests.worlds.forest import VOCAB

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}

_HYBRID = {
    **_SIZES,
    "initializer_range": 0.1,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SIZES),
    "qwen3": Qwen3Config(**_SIZES),
    "qwen3_moe": Qwen3MoeConfig(**_SIZES, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2),
    "qwen3_5": Qwen3_5TextConfig(**_HYBRID),
    "qwen3_next": Qwen3NextConfig(**_HYBRID, moe_intermediate_size=12, num_experts=4, mlp_only_layers=[0, 1, 2]),
    "gemma2": Gemma2Config(
        **_SIZES,
        sliding_window=4,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=None,
    ),
    "gemma2_uncapped": Gemma2Config(
        **_SIZES,
        sliding_window=4,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
}


def tiny(kind: str, dtype: torch.dtype = torch.float64, attention: str = "dense") -> PreTrainedModel:
    """The same weights for the same kind, whatever the dtype and the attention."""
    torch.manual_seed(0)
    AttentionInterface.register("dense", dense_attention)
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[kind]), attn_implementation=attention)
    model.set_experts_implementation("eager")
    return _wide(model) if dtype == torch.float64 else model


def _wide(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float64 throughout; transformers' norms and routers fall back to float32."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, _Norm(child))
            elif type(child).__name__.endswith("RMSNormGated"):
                setattr(parent, name, _GatedNorm(child))
            elif type(child).__name__ == "Qwen3MoeTopKRouter":
                setattr(parent, name, _Router(child))
    return model.double()


class _Norm(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight
        self.offset = 1.0 if type(norm).__name__.startswith(("Gemma", "Qwen3_5", "Qwen3Next")) else 0.0

    def forward(self, states: Tensor) -> Tensor:
        return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6) * (self.offset + self.weight)


class _GatedNorm(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight

    def forward(self, states: Tensor, gate: Tensor) -> Tensor:
        scaled = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled * nn.functional.silu(gate)


class _Router(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.weight, self.top_k = router.weight, router.top_k

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = states.reshape(-1, states.shape[-1]) @ self.weight.T
        scores, experts = logits.softmax(-1).topk(self.top_k, dim=-1)
        return logits, scores, experts


def dense_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """One sample alone, all scores at once in the model's own precision: what packed rows are compared with."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    places = torch.arange(query.shape[2])
    distance = places[:, None] - places
    hidden = (distance < 0) | (distance >= (sliding_window or len(places)))
    out = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
    return out.transpose(1, 2), None
