"""A vision-language model of a few thousand parameters."""

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

VISION = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 16}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
}


def tiny_vision(num_vocab: int) -> Qwen2_5_VLForConditionalGeneration:
    """Random float32 weights; the tower and its merger lie under `model.visual`."""
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config={**TEXT, "vocab_size": num_vocab}, vision_config=VISION)
    return Qwen2_5_VLForConditionalGeneration(config)
