"""Model FLOPs utilisation: the share of the devices' peak that the model's own arithmetic takes."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}
"""Dense bfloat16 operations per second of a GPU whose name has this part, as NVIDIA's data sheets state them."""
_SPARSE = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Floating-point operations of forward and backward; what is computed again is not counted."""

    per_token: float
    """Of a forwarded token."""
    per_pair: float
    """Of an attended pair of query and key."""
    peak: float
    """What one device could do in a second."""

    def seconds(self, num_tokens: float, num_pairs: float, num_devices: int) -> float:
        """Seconds that all devices would take at their peak."""
        return (self.per_token * num_tokens + self.per_pair * num_pairs) / (self.peak * num_devices)


def arithmetic(model: PreTrainedModel, device_name: str | None) -> Arithmetic | None:
    """A model's arithmetic on a device; None where its peak or the architecture's operations are not known."""
    peak = next((peak for part, peak in PEAKS.items() if part in (device_name or "")), None)
    config = model.config.to_dict()
    kinds = set(config.get("layer_types") or ["full_attention"])
    dense = model.config.get_text_config() is model.config and not any(config.get(name) for name in _SPARSE)
    if peak is None or not dense or kinds != {"full_attention"} or "num_attention_heads" not in config:
        return None
    num_heads = config["num_attention_heads"]
    width = num_heads * (config.get("head_dim") or config["hidden_size"] // num_heads)
    # A lookup is no arithmetic; where the head shares the table, the table is the head's.
    looked_up = 0 if config.get("tie_word_embeddings") else _num_parameters(model.get_input_embeddings())
    return Arithmetic(6.0 * (_num_parameters(model) - looked_up), 12.0 * width * config["num_hidden_layers"], peak)


def device_name(use_cpu: bool) -> str | None:
    """The GPU that this process trains on, None on a CPU."""
    return None if use_cpu or not torch.cuda.is_available() else torch.cuda.get_device_name()


def _num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
