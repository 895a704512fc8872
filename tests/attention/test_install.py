import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, MambaConfig

from agrpo.attention import install, tree_attention
from agrpo.attention.deltanet import TreeGatedDeltaNet
from agrpo.errors import BadInput
from agrpo.trees import pack
from tests.worlds.forest import sample
from tests.worlds.tiny_models import tiny


def test_attention_sinks_are_refused() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = GptOssConfig(**sizes, num_hidden_layers=1, vocab_size=8, num_local_experts=2, head_dim=8)
    with pytest.raises(BadInput, match=r"attention sinks \(.*sinks\)"):
        install(AutoModelForCausalLM.from_config(config))


def test_other_token_mixers_are_refused() -> None:
    config = MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, state_size=2)
    with pytest.raises(BadInput, match="mixes tokens by a convolution"):
        install(AutoModelForCausalLM.from_config(config))


def test_layers_with_another_view_of_the_past_are_refused() -> None:
    model = tiny("qwen3", torch.float32)
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(BadInput, match="layers of type chunked_attention"):
        install(model)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_under_autocast_all_of_attention_is_in_one_dtype(kind: str) -> None:
    model, row = tiny(kind, torch.float32), pack([sample([1, 2, 3, 4]), sample([1, 2, 5])])
    given = {"input_ids": torch.as_tensor(row.input_ids)[None]}
    given |= {"position_ids": torch.as_tensor(row.layout.position_ids)[None]}
    given |= install(model).prepare(row.layout, torch.device("cpu"))
    expected = model(**given).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(**given).logits
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)


def test_dropout_is_refused_in_training() -> None:
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    config.attention_dropout = 0.1
    model = AutoModelForCausalLM.from_config(config).train()
    install(model)
    with pytest.raises(BadInput, match=r"attention dropout is 0\.1"):
        model(torch.tensor([[1, 2]]), tree=object())


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_5"])
def test_a_forward_without_a_tree_is_refused(kind: str) -> None:
    model = tiny(kind)
    install(model)
    with pytest.raises(BadInput, match="got no tree"):
        model(torch.tensor([[1, 2]]))


def test_replaced_layers_keep_their_names_and_parameters() -> None:
    model = tiny("qwen3_5", torch.float32)
    before = dict(model.named_parameters())
    assert install(model).recurrent and install(model).recurrent
    after = dict(model.named_parameters())
    assert list(before) == list(after) and all(before[name] is after[name] for name in before)
    assert sum(isinstance(module, TreeGatedDeltaNet) for module in model.modules()) == 2


def test_after_the_block_attention_is_what_it_was() -> None:
    model, tokens = tiny("qwen3", torch.float32, attention="sdpa"), torch.tensor([[1, 2, 3]])
    before = model(tokens).logits
    with tree_attention(model) as attention:
        assert attention.name == "tree_cpu"
    assert torch.equal(model(tokens).logits, before)
