"""The tiled head against the full softmax, in float64."""

import pytest
import torch
from torch import nn

from agrpo.losses import head as head_module
from agrpo.losses.head import FusedHead, HeadQuery, read_head, unpack_answer

NUM_TERMS, DIM, VOCAB, TEMPERATURE = 7, 5, 11, 0.7


@pytest.fixture(params=[1, 3 * VOCAB, 1 << 20], ids=["one-term-tiles", "ragged-tiles", "one-tile"])
def tiles(request, monkeypatch):
    monkeypatch.setattr(head_module, "LOGITS_PER_TILE", request.param)


def world(dtype=torch.float64):
    torch.manual_seed(0)
    hidden = torch.randn(NUM_TERMS, DIM, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, DIM, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCAB, dtype=dtype, requires_grad=True)
    targets = torch.randint(VOCAB, (NUM_TERMS,))
    top_ids = torch.stack([torch.randperm(VOCAB)[:3] for _ in range(NUM_TERMS)])
    top_ids[2, 1:] = -1
    return hidden, weight, bias, targets, top_ids


def full(hidden, weight, bias, targets, top_ids, allowed=None, softcap=None):
    """Reference: whole log-softmax, autograd's own backward."""
    logits = hidden @ weight.T + bias
    logits = (logits if softcap is None else softcap * torch.tanh(logits / softcap)) / TEMPERATURE
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    log_p = logits.log_softmax(-1)
    top = log_p.gather(1, top_ids.clamp(min=0)).masked_fill(top_ids < 0, -torch.inf)
    entropy = -(log_p.exp() * log_p.masked_fill(torch.isinf(log_p), 0.0)).sum(-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), top, entropy


def gradients(outputs, inputs):
    """Of a fixed random function of the finite outputs."""
    generator = torch.Generator().manual_seed(1)
    total = 0.0
    for output in outputs:
        factors = torch.randn(output.shape, generator=generator, dtype=output.dtype)
        total = total + (output.masked_fill(torch.isinf(output), 0.0) * factors).sum()
    return torch.autograd.grad(total, inputs)


def test_values_and_gradients_equal_the_full_softmax(tiles):
    hidden, weight, bias, targets, top_ids = world()
    answer = read_head(hidden, weight, bias, HeadQuery(targets, top_ids, None, TEMPERATURE))
    log_probs, top, entropy = full(hidden, weight, bias, targets, top_ids)
    torch.testing.assert_close(answer.log_probs, log_probs, rtol=0, atol=1e-12)
    torch.testing.assert_close(answer.top_log_probs, top, rtol=0, atol=1e-12)
    torch.testing.assert_close(answer.entropy, entropy, rtol=0, atol=1e-12)
    ours = gradients([answer.log_probs, answer.top_log_probs], [hidden, weight, bias])
    theirs = gradients([log_probs, top], [hidden, weight, bias])
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_candidate_sets_renormalise(tiles, softcap):
    hidden, weight, bias, targets, top_ids = world()
    candidates = torch.full((NUM_TERMS, 5), -1)
    allowed = torch.ones(NUM_TERMS, VOCAB, dtype=torch.bool)
    for term in range(NUM_TERMS - 1):  # the last term keeps the whole vocabulary
        chosen = torch.unique(torch.cat([targets[term : term + 1], top_ids[term][top_ids[term] >= 0]]))
        candidates[term, : len(chosen)] = chosen
        allowed[term] = False
        allowed[term, chosen] = True
    answer = read_head(hidden, weight, bias, HeadQuery(targets, top_ids, candidates, TEMPERATURE, softcap))
    log_probs, top, entropy = full(hidden, weight, bias, targets, top_ids, allowed, softcap)
    torch.testing.assert_close(answer.log_probs, log_probs, rtol=0, atol=1e-12)
    torch.testing.assert_close(answer.entropy, entropy, rtol=0, atol=1e-12)
    ours = gradients([answer.log_probs, answer.top_log_probs], [hidden, weight])
    theirs = gradients([log_probs, top], [hidden, weight])
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-12)


def test_float32_agrees_to_1e_5(tiles):
    hidden, weight, bias, targets, top_ids = world(torch.float32)
    answer = read_head(hidden, weight, bias, HeadQuery(targets, top_ids, None, TEMPERATURE))
    log_probs, _, _ = full(hidden.double(), weight.double(), bias.double(), targets, top_ids)
    torch.testing.assert_close(answer.log_probs.double(), log_probs, rtol=0, atol=1e-5)


def test_no_terms_give_zero_gradients():
    hidden, weight, bias, targets, top_ids = world()
    answer = read_head(hidden[:0], weight, bias, HeadQuery(targets[:0], top_ids[:0], None, TEMPERATURE))
    for grad in torch.autograd.grad(answer.log_probs.sum() + answer.top_log_probs.sum(), [hidden, weight, bias]):
        assert grad.abs().sum() == 0


def test_autocast_backward_uses_the_logits_of_its_forward():
    hidden, weight, _, targets, top_ids = world(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = read_head(hidden, weight, None, HeadQuery(targets, top_ids, None, 1.0))
    (grad,) = torch.autograd.grad(answer.log_probs.sum(), [hidden])
    reference = read_head(hidden, weight, None, HeadQuery(targets, top_ids, None, 1.0)).log_probs.sum()
    (expected,) = torch.autograd.grad(reference, [hidden])
    assert answer.log_probs.dtype == torch.float32
    torch.testing.assert_close(grad, expected, rtol=0, atol=0.1)


def test_the_fused_head_is_the_head_it_replaced_until_it_is_asked():
    linear = nn.Linear(DIM, VOCAB, bias=False)
    fused = FusedHead.replacing(linear)
    hidden = torch.randn(1, NUM_TERMS, DIM)
    assert torch.equal(fused(hidden), linear(hidden))
    assert fused.weight is linear.weight
    query = HeadQuery(torch.zeros(NUM_TERMS, dtype=torch.long), torch.zeros(NUM_TERMS, 0, dtype=torch.long), None, 1.0)
    with fused.answering(query):
        answer = unpack_answer(fused(hidden))
    torch.testing.assert_close(answer.log_probs, linear(hidden)[0].log_softmax(-1)[:, 0])
    assert answer.top_log_probs.shape == (NUM_TERMS, 0)
    assert fused(hidden).shape == (1, NUM_TERMS, VOCAB)
