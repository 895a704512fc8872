import torch
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

from tests.attention.test_exactness import alone, packed
from tests.worlds.forest import VOCAB, sample

VISION = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 16}
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
}


def test_the_text_model_inside_reads_trees() -> None:
    samples = [sample([1, 2, 3, 4, 5, number, 1, number], 5) for number in range(3)]
    model = AutoModelForImageTextToText.from_config(Qwen2_5_VLConfig(text_config=TEXT, vision_config=VISION))
    expected = alone(model, samples)
    assert torch.allclose(packed(model, samples), expected, rtol=0, atol=1e-5)
