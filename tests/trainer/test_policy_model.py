"""The trained model: fused head, digest, refusals."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from agrpo.errors import BadInput
from agrpo.losses.head import FusedHead
from agrpo.trainer.policy_model import (
    fuse_head,
    in_trees,
    load_policy,
    load_tokenizer,
    named_weights,
    router_coefficient,
)
from agrpo.trainer.row_loss import RowLoss
from agrpo.trainer.rows import build_row
from agrpo.trainer.store_trainer import StoreTrainer
from tests.trainer import ledger
from tests.trainer.test_rows import sample
from tests.worlds.tiny_model import make_tiny_model

SHAPE = {
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def llama(**settings):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **settings))


@pytest.mark.parametrize("tied", [True, False])
def test_fusing_keeps_names_ties_logits_and_digest(tied):
    model = llama(tie_word_embeddings=tied)
    tokens = torch.tensor([[1, 2, 3]])
    names, digest, logits = (
        [name for name, _ in named_weights(model)],
        ledger.weights_digest(model),
        model(tokens).logits,
    )
    head = fuse_head(model)
    assert fuse_head(model) is head and isinstance(model.lm_head, FusedHead)
    assert [name for name, _ in named_weights(model)] == names == sorted(names)
    assert ("lm_head.weight" in names) != tied
    assert ledger.weights_digest(model) == digest
    assert torch.equal(model(tokens).logits, logits)


def test_the_digest_sees_one_bit_of_one_weight():
    model = llama()
    before = ledger.weights_digest(model)
    with torch.no_grad():
        model.model.norm.weight[3] = torch.nextafter(model.model.norm.weight[3], torch.tensor(2.0))
    assert ledger.weights_digest(model) != before


def test_logits_that_are_scaled_after_the_head_are_refused():
    model = llama()
    model.config.logit_scale = 0.5
    with pytest.raises(BadInput, match=r"logit_scale=0\.5 scales the logits"):
        fuse_head(model)


def test_softcapped_logits_are_capped_once_and_the_config_stays(tmp_path):
    settings = {
        **SHAPE,
        "initializer_range": 1.0,
        "head_dim": 8,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 0.5,
    }
    model = Gemma2ForCausalLM(Gemma2Config(**settings))
    tokens = [1, 2, 3, 4]
    logits = model(torch.tensor([tokens])).logits[0]
    expected = logits.log_softmax(-1)[[1, 2], [3, 4]]
    head, args = fuse_head(model), ledger.config(tmp_path, score_centering=False)
    row = build_row([sample(tokens, {2: -3.0, 3: -3.0})])
    with in_trees(model, args) as attention:
        result = RowLoss(head, args, 0.0)(model, row, attention)
    torch.testing.assert_close(result.marks["logp_difference"], (expected + 3.0).abs())
    assert model.config.final_logit_softcapping == 0.5
    assert logits.abs().max() <= 0.5 and torch.equal(model(torch.tensor([tokens])).logits[0], logits)


def test_an_attention_backend_that_cannot_serve_is_refused_with_the_trainer(tmp_path):
    path = make_tiny_model(tmp_path / "model")
    args = ledger.config(tmp_path, attention_backend="tree_flex")
    with pytest.raises(BadInput, match=r"tree_flex.*the model lies on cpu"):
        StoreTrainer(LlamaForCausalLM.from_pretrained(path), args)


def test_a_model_loads_in_the_dtype_asked_for(tmp_path):
    path = make_tiny_model(tmp_path / "model")
    assert load_policy(str(path), ledger.config(tmp_path)).dtype == torch.float32
    assert (
        load_policy(str(path), ledger.config(tmp_path, model_init_kwargs={"dtype": "bfloat16"})).dtype == torch.bfloat16
    )


def test_a_name_that_leads_nowhere_is_a_setting_to_mend(tmp_path):
    gone, args = str(tmp_path / "gone"), ledger.config(tmp_path)
    for load, part in ((load_policy, "the model"), (load_tokenizer, "the tokenizer")):
        with pytest.raises(BadInput, match=f"model.path: {part} of '{gone}' cannot be loaded .*; give a saved"):
            load(gone, args)


def test_the_router_loss_is_for_models_with_experts(tmp_path):
    assert router_coefficient(llama(), ledger.config(tmp_path)) == 0.0
    with pytest.raises(BadInput, match="no experts"):
        router_coefficient(llama(), ledger.config(tmp_path, router_aux_loss_coef=0.1))
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1))
    assert router_coefficient(model, ledger.config(tmp_path)) == model.config.router_aux_loss_coef > 0
    assert router_coefficient(model, ledger.config(tmp_path, router_aux_loss_coef=0.0)) == 0.0


def test_the_router_loss_is_added_per_trained_token(tmp_path):
    torch.manual_seed(0)
    model = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1))
    head, args = fuse_head(model), ledger.config(tmp_path)
    row = build_row([sample([1, 2, 3, 4], {2: -3.0, 3: -3.0})])
    with in_trees(model, args) as attention:
        plain = RowLoss(head, args, 0.0)(model, row, attention)
        balanced = RowLoss(head, args, 0.5)(model, row, attention)
    assert plain.aux_loss is None
    expected = plain.total + 0.5 * balanced.aux_loss * 2
    torch.testing.assert_close(balanced.total, expected)
