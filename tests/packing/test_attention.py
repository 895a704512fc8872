"""A packed row gives every sample the log-probabilities it has alone."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from agrpo.errors import BadInput
from agrpo.packing.attention import packed_attention

SIZES = (7, 1, 12, 3)


def model_of(kind):
    torch.manual_seed(0)
    shape = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
    }
    if kind == "grouped-query":
        return LlamaForCausalLM(LlamaConfig(**shape))
    return MistralForCausalLM(MistralConfig(**shape, sliding_window=4))


def row_of(samples):
    bounds = [0]
    for sample in samples:
        bounds.append(bounds[-1] + len(sample))
    return {
        "input_ids": torch.cat(samples).unsqueeze(0),
        "position_ids": torch.cat([torch.arange(len(sample)) for sample in samples]).unsqueeze(0),
        "sample_bounds": tuple(bounds),
        "use_cache": False,
    }


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "gradient-checkpointing"])
@pytest.mark.parametrize("kind", ["grouped-query", "sliding-window"])
def test_packed_equals_alone_in_values_and_gradients(kind, checkpointing):
    model = model_of(kind).train()
    samples = [torch.randint(50, (size,)) for size in SIZES]
    alone = [model(input_ids=sample.unsqueeze(0), use_cache=False).logits[0].log_softmax(-1) for sample in samples]
    factors = [torch.randn_like(log_probs) for log_probs in alone]
    sum((f * log_probs).sum() for f, log_probs in zip(factors, alone, strict=True)).backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable()
    with packed_attention(model):
        packed = model(**row_of(samples)).logits[0].log_softmax(-1)
        torch.testing.assert_close(packed, torch.cat(alone), rtol=0, atol=1e-5)
        (torch.cat(factors) * packed).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-4)


def test_a_sample_does_not_see_its_neighbours():
    model = model_of("grouped-query").eval()
    first, second, other = (torch.randint(50, (5,)) for _ in range(3))
    with torch.no_grad(), packed_attention(model):
        one = model(**row_of([first, second])).logits[0, 5:]
        two = model(**row_of([other, second])).logits[0, 5:]
    assert torch.equal(one, two)


def test_a_forward_without_bounds_says_what_to_do():
    model = model_of("grouped-query")
    with pytest.raises(BadInput, match="sample_bounds"), packed_attention(model):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long))
    assert model(input_ids=torch.zeros(1, 3, dtype=torch.long)).logits.shape == (1, 3, 50)


def test_what_cannot_be_packed_is_refused():
    model = model_of("grouped-query")
    model.config.layer_types = ["full_attention", "mamba"]
    with pytest.raises(BadInput, match="mamba"), packed_attention(model):
        pass
