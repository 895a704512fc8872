"""The facts of async-grpo.md section 4 about score centring, checked in float64."""

import pytest
import torch

from agrpo.losses import Band, LossTerms
from agrpo.losses.centering import centered_loss, head_coefficients

BAND = Band(clip_min=0.5, clip_max=5.0, epsilon=0.2, epsilon_high=0.2)
VOCAB, K = 12, 4


def terms_of(logits, sampler_log_p, sampled, advantages, dtype=torch.float64):
    """Loss terms of a trained policy (logits) against a sampler, H being the sampler's K most likely tokens."""
    log_p = logits.log_softmax(-1)
    top = sampler_log_p.topk(K, dim=-1).indices
    return LossTerms(
        log_probs=log_p.gather(1, sampled[:, None]).squeeze(1),
        top_log_probs=log_p.gather(1, top),
        sampler_log_probs=sampler_log_p.gather(1, sampled[:, None]).squeeze(1),
        sampler_top_log_probs=sampler_log_p.gather(1, top),
        advantages=advantages.to(dtype),
    )


def full_vocabulary_loss(logits, sampler_log_p, sampled, advantages, band):
    """The documented gradient with the whole vocabulary, under the model q = alpha p outside H."""
    log_p = logits.log_softmax(-1)
    p, q = log_p.detach().exp(), sampler_log_p.exp()
    in_head = torch.zeros_like(q, dtype=torch.bool).scatter_(1, sampler_log_p.topk(K, dim=-1).indices, True)
    head_q, head_p = (q * in_head).sum(-1), (p * in_head).sum(-1)
    alpha = (1 - head_q).clamp(min=1e-6) / (1 - head_p).clamp(min=1e-6)
    modelled = torch.where(in_head, q, alpha[:, None] * p)

    def f(ratio):
        return torch.where((ratio >= band.clip_min) & (ratio <= band.clip_max), ratio, 0.0)

    ratio = (log_p.detach() - sampler_log_p).exp().gather(1, sampled[:, None]).squeeze(1)
    score = f(ratio) * log_p.gather(1, sampled[:, None]).squeeze(1)
    centre = (modelled * f(p / modelled) * log_p).sum(-1)
    return -(advantages * (score - centre)).sum()


def world(distance, num_terms=40, dtype=torch.float64):
    torch.manual_seed(3)
    sampler = torch.randn(num_terms, VOCAB, dtype=dtype) * 2
    logits = (sampler + distance * torch.randn(num_terms, VOCAB, dtype=dtype)).requires_grad_()
    sampled = torch.multinomial(sampler.softmax(-1), 1).squeeze(1)
    return logits, sampler.log_softmax(-1), sampled, torch.randn(num_terms, dtype=dtype)


@pytest.mark.parametrize("distance", [0.05, 0.5, 2.0])
def test_the_head_only_form_has_the_full_vocabulary_gradient(distance):
    logits, sampler, sampled, advantages = world(distance)
    loss = centered_loss(terms_of(logits, sampler, sampled, advantages), BAND).total
    (ours,) = torch.autograd.grad(loss, [logits])
    (full,) = torch.autograd.grad(full_vocabulary_loss(logits, sampler, sampled, advantages, BAND), [logits])
    torch.testing.assert_close(ours, full, rtol=0, atol=1e-12)


def test_float32_agrees_with_float64():
    logits, sampler, sampled, advantages = world(0.5)
    (expected,) = torch.autograd.grad(full_vocabulary_loss(logits, sampler, sampled, advantages, BAND), [logits])
    single = logits.detach().float().requires_grad_()
    terms = terms_of(single, sampler.float(), sampled, advantages, dtype=torch.float32)
    (ours,) = torch.autograd.grad(centered_loss(terms, BAND).total, [single])
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-5)


def test_inside_the_band_every_coefficient_is_0_and_centring_changes_nothing():
    logits, sampler, sampled, advantages = world(0.05)
    terms = terms_of(logits, sampler, sampled, advantages)
    coefficients, mass = head_coefficients(terms, BAND)
    assert torch.equal(coefficients, torch.zeros_like(coefficients))
    assert ((mass > 0) & (mass < 1)).all()
    (ours,) = torch.autograd.grad(centered_loss(terms, BAND).total, [logits])
    log_p = logits.log_softmax(-1).gather(1, sampled[:, None]).squeeze(1)
    ratio = (log_p.detach() - terms.sampler_log_probs).exp()
    (plain,) = torch.autograd.grad(-(advantages * ratio * log_p).sum(), [logits])
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def one_term(p, q, sampled):
    """One position: the trained policy p and the sampler q as lists of probabilities; H is the sampler's top 2."""
    logits = torch.tensor([p], dtype=torch.float64).log().requires_grad_()
    sampler = torch.tensor([q], dtype=torch.float64).log()
    log_p = logits.log_softmax(-1)
    top = sampler.topk(2, dim=-1).indices
    terms = LossTerms(
        log_probs=log_p[:, sampled],
        top_log_probs=log_p.gather(1, top),
        sampler_log_probs=sampler[:, sampled],
        sampler_top_log_probs=sampler.gather(1, top),
        advantages=torch.ones(1, dtype=torch.float64),
    )
    return logits, terms


def test_coefficients_one_can_check_by_eye():
    # H = {0, 1}: ratios 0.1/0.6 (outside) and 0.3/0.3 (inside); tail 0.6/0.1 = 6 (outside the band).
    _, terms = one_term(p=[0.1, 0.3, 0.6], q=[0.6, 0.3, 0.1], sampled=1)
    coefficients, mass = head_coefficients(terms, BAND)
    torch.testing.assert_close(coefficients, torch.tensor([[0.0, 0.3]], dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(mass, torch.tensor([0.9], dtype=torch.float64))


def test_a_masked_token_keeps_the_centring_of_its_position():
    logits, terms = one_term(p=[0.1, 0.3, 0.6], q=[0.6, 0.3, 0.1], sampled=0)  # ratio 1/6: masked
    result = centered_loss(terms, BAND)
    assert result.marks["masked"].item() == 1
    (grad,) = torch.autograd.grad(result.total, [logits])
    # +0.3 grad log p(1), and grad log p(1) = onehot(1) - p
    torch.testing.assert_close(grad, 0.3 * torch.tensor([[-0.1, 0.7, -0.6]], dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_sampled_token_need_not_be_in_the_head():
    logits, terms = one_term(p=[0.5, 0.3, 0.2], q=[0.6, 0.3, 0.1], sampled=2)  # ratio 2, tail ratio 2: inside
    (grad,) = torch.autograd.grad(centered_loss(terms, BAND).total, [logits])
    torch.testing.assert_close(grad, -2 * torch.tensor([[-0.5, -0.3, 0.8]], dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_token_without_log_probability_leaves_the_loss():
    logits, sampler, sampled, advantages = world(2.0)
    terms = terms_of(logits, sampler, sampled, advantages)
    broken = terms.sampler_log_probs.clone()
    broken[5] = torch.nan
    result = centered_loss(LossTerms(terms.log_probs, terms.top_log_probs, broken, *_rest(terms)), BAND)
    (grad,) = torch.autograd.grad(result.total, [logits])
    assert torch.isfinite(result.total)
    assert torch.equal(grad[5], torch.zeros(VOCAB, dtype=torch.float64))
    assert grad[4].abs().sum() > 0
    assert torch.isnan(result.marks["ratio"][5]) and torch.isfinite(result.marks["ratio"][4])


def _rest(terms):
    return terms.sampler_top_log_probs, terms.advantages


def test_missing_top_tokens_count_as_tail():
    """A -inf entry (padding) is as if H were smaller."""
    logits, sampler, sampled, advantages = world(2.0)
    terms = terms_of(logits, sampler, sampled, advantages)
    short = LossTerms(
        terms.log_probs,
        terms.top_log_probs[:, :2],
        terms.sampler_log_probs,
        terms.sampler_top_log_probs[:, :2],
        advantages,
    )
    padding = torch.full((len(sampled), 2), -torch.inf, dtype=torch.float64)
    padded = LossTerms(
        terms.log_probs,
        torch.cat([short.top_log_probs, padding], 1),
        terms.sampler_log_probs,
        torch.cat([short.sampler_top_log_probs, padding], 1),
        advantages,
    )
    assert torch.equal(centered_loss(short, BAND).total, centered_loss(padded, BAND).total)


def test_a_head_that_holds_all_the_mass_stays_finite():
    logits = torch.tensor([[5.0, 1.0]], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    log_p = logits.log_softmax(-1)
    terms = LossTerms(log_p[:, 0], log_p, sampler[:, 0], sampler, torch.ones(1, dtype=torch.float64))
    (grad,) = torch.autograd.grad(centered_loss(terms, BAND).total, [logits])
    assert torch.isfinite(grad).all()
