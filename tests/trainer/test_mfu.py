"""The share of a GPU's peak, with numbers one can check by hand."""

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from agrpo.trainer.feed import StepOrder
from agrpo.trainer.measures import Measures
from agrpo.trainer.mfu import Arithmetic, arithmetic
from agrpo.trees import Sample


def small(**settings):
    """Attention 4 * 8 * 8, MLP 3 * 8 * 16, norms 3 * 8, head 10 * 8 parameters."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "vocab_size": 10, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "tie_word_embeddings": True, **settings}))


@pytest.mark.parametrize("tied", [True, False])
def test_a_table_that_is_only_looked_up_is_no_arithmetic(tied):
    found = arithmetic(small(tie_word_embeddings=tied), "NVIDIA H200")
    assert found == Arithmetic(per_token=6 * (256 + 384 + 24 + 80), per_pair=12 * 8, peak=989e12)


def test_what_is_not_known_is_not_guessed():
    assert arithmetic(small(), None) is None
    assert arithmetic(small(), "NVIDIA GeForce") is None
    experts = small()
    experts.config.num_local_experts = 4
    assert arithmetic(experts, "NVIDIA H200") is None


def test_a_step_takes_its_share():
    measures = Measures(Arithmetic(per_token=10.0, per_pair=1.0, peak=100.0))
    row = (Sample.of(1, 1, np.array([5, 6, 7]), 2),)
    measures.add_seconds("fwd_bwd_s", 0.5)
    measures.end_step(StepOrder(1, ((row, row),)), token_budget=8)
    values = measures.window.values()
    # Two rows of 3 tokens and 1 + 2 + 3 pairs on two devices: (60 + 12) / 200 = 0.36 s of work.
    assert values["perf/fwd_bwd_mfu"] == pytest.approx(0.72)
    assert values["perf/wall_clock_mfu"] > 0
    assert not any("mfu" in name for name in ended(Measures(), row))


def ended(measures, row):
    measures.end_step(StepOrder(1, ((row,),)), token_budget=8)
    return measures.window.values()
