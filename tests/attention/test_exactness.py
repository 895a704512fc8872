"""A packed row gives what its samples give alone: log-probabilities of trained tokens, and gradients of parameters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from transformers import PreTrainedModel

from agrpo.attention import install
from agrpo.trees import pack
from tests.worlds.forest import Sample, forests, sample
from tests.worlds.tiny_models import tiny

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
KINDS = ["llama", "qwen3", "qwen3_moe", "gemma2", "gemma2_uncapped"]
HYBRIDS = ["qwen3_5", "qwen3_next"]


def alone(model: PreTrainedModel, samples: list[Sample]) -> Tensor:
    """Log-probability of every trained token, each sample forwarded by itself [terms]."""
    found = []
    for token_ids, trained in samples:
        tokens = torch.as_tensor(token_ids, dtype=torch.int64)
        terms = torch.as_tensor(np.flatnonzero(trained))
        log_probs = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
        found.append(log_probs[terms - 1, tokens[terms]])
    return torch.cat(found)


def packed(model: PreTrainedModel, samples: list[Sample], *, share: bool = True) -> Tensor:
    """The same from one row; switches the model's attention."""
    attention, row = install(model), pack(samples, share=share)
    logits = model(
        input_ids=torch.as_tensor(row.input_ids)[None],
        position_ids=torch.as_tensor(row.layout.position_ids)[None],
        **attention.prepare(row.layout, torch.device("cpu")),
    ).logits[0]
    return logits.log_softmax(-1)[torch.as_tensor(row.positions), torch.as_tensor(row.targets)]


def gradients(model: PreTrainedModel, log_probs: Tensor) -> Tensor:
    """Of a weighted sum of the log-probabilities, all parameters in one line."""
    (log_probs * torch.linspace(0.5, 1.5, len(log_probs), dtype=log_probs.dtype)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def one_by_one(model: PreTrainedModel, samples: list[Sample]) -> Tensor:
    """Each sample in a row of its own, for layers of which transformers has no float64."""
    return torch.cat([packed(model, [each]) for each in samples])


def assert_exact(kind: str, dtype: torch.dtype, samples: list[Sample]) -> None:
    reference, model = tiny(kind, dtype), tiny(kind, dtype)
    separate = one_by_one if kind in HYBRIDS and dtype == torch.float64 else alone
    expected, found = separate(reference, samples), packed(model, samples)
    assert torch.allclose(found, expected, rtol=0, atol=TOLERANCE[dtype])
    if len(expected):
        wanted, got = gradients(reference, expected), gradients(model, found)
        assert (got - wanted).norm() <= TOLERANCE[dtype] * wanted.norm()


@pytest.mark.parametrize("kind", KINDS + HYBRIDS)
@given(samples=forests())
@settings(max_examples=10, deadline=None)
def test_float64(kind: str, samples: list[Sample]) -> None:
    assert_exact(kind, torch.float64, samples)


@pytest.mark.parametrize("kind", KINDS + HYBRIDS)
@given(samples=forests())
@settings(max_examples=5, deadline=None)
def test_float32(kind: str, samples: list[Sample]) -> None:
    assert_exact(kind, torch.float32, samples)


@pytest.mark.parametrize("kind", KINDS + HYBRIDS)
def test_transformers_own_attention_agrees(kind: str) -> None:
    samples = [sample([1, 2, 3, 4, 5, 6, number, 1, number, 2], 6) for number in range(4)]
    eager = tiny(kind, torch.float32, attention="eager")
    assert torch.allclose(packed(tiny(kind, torch.float32), samples), alone(eager, samples), rtol=0, atol=1e-5)


def test_long_rows_cross_the_bounds_of_tiles() -> None:
    generator = np.random.default_rng(0)
    prompt = generator.integers(0, 7, 300).tolist()
    samples = [sample(prompt + generator.integers(0, 7, size).tolist(), 300) for size in (280, 3, 150)]
    samples.append(sample([*samples[0][0][:400].tolist(), 1, 1, 1], 350))
    for kind in ("qwen3", "gemma2", "gemma2_uncapped"):
        assert_exact(kind, torch.float64, samples)


def test_the_loss_agrees_with_finite_differences() -> None:
    samples = [sample([1, 2, 3, 4, 5], 3), sample([1, 2, 3, 6, 6], 3), sample([1, 2, 4], 1)]
    model = tiny("gemma2")
    gradient = gradients(model, packed(model, samples))
    direction = torch.randn(gradient.shape, dtype=gradient.dtype, generator=torch.Generator().manual_seed(1))

    def loss_at(step: float) -> float:
        moved = tiny("gemma2")
        with torch.no_grad():
            vector = torch.nn.utils.parameters_to_vector(moved.parameters()) + step * direction
            torch.nn.utils.vector_to_parameters(vector, moved.parameters())
            log_probs = packed(moved, samples)
            weights = torch.linspace(0.5, 1.5, len(log_probs), dtype=log_probs.dtype)
            return float((log_probs * weights).sum())

    slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    assert slope == pytest.approx(float(gradient @ direction), rel=1e-7)


def test_gradient_checkpointing_changes_nothing() -> None:
    samples = [sample([1, 2, 3, 4, 5], 3), sample([1, 2, 3, 6, 6], 3)]
    plain, saving = tiny("qwen3"), tiny("qwen3")
    saving.gradient_checkpointing_enable({"use_reentrant": False})
    saving.train()
    assert torch.equal(gradients(saving, packed(saving, samples)), gradients(plain, packed(plain, samples)))


def test_equal_rows_give_equal_bits() -> None:
    samples = [sample([1, 2, 3, number, 5, 6], 3) for number in range(5)]
    first, second = tiny("gemma2", torch.float32), tiny("gemma2", torch.float32)
    assert torch.equal(gradients(first, packed(first, samples)), gradients(second, packed(second, samples)))
