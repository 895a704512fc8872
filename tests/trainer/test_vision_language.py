"""A vision-language model is trained on text: its tower is loaded and saved, never trained and never sent."""

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from agrpo.trainer.policy_model import load_policy, named_weights
from tests.trainer import ledger
from tests.worlds import small_groups
from tests.worlds.tiny_vision import tiny_vision

pytestmark = pytest.mark.usefixtures("ledgers_hold")


def test_the_text_model_learns_and_the_tower_stays(tmp_path):
    tiny_vision(ledger.VOCAB).save_pretrained(tmp_path / "model")
    store = ledger.open_store(tmp_path)
    attempt = small_groups.start_run(store)
    ledger.fill(attempt, 2)
    trainer, work, _ = ledger.trainer_for(attempt, tmp_path / "model", ledger.config(tmp_path), with_tokenizer=False)
    assert isinstance(trainer.policy, Qwen2_5_VLForConditionalGeneration)
    tower = [weight for name, weight in trainer.policy.named_parameters() if "visual" in name]
    assert tower and not any(weight.requires_grad for weight in tower)
    trainer.train_in(work)
    store.close()
    before = load_policy(str(tmp_path / "model"), trainer.args).state_dict()
    after = load_policy(f"{trainer.args.output_dir}/checkpoint-1", trainer.args).state_dict()
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert changed and not any("visual" in name for name in changed)
    assert changed <= {name for name, _ in named_weights(trainer.policy)}


def test_only_the_text_model_is_sent_and_digested():
    model = tiny_vision(30)
    names = [name for name, _ in named_weights(model)]
    assert "lm_head.weight" in names and "model.language_model.norm.weight" in names
    assert not any("visual" in name for name in names)
    digest = ledger.weights_digest(model)
    with torch.no_grad():
        model.model.visual.patch_embed.proj.weight.zero_()
    assert ledger.weights_digest(model) == digest
