"""The head fused with the loss: log-probabilities in tiles, logits [tokens, vocab] never held as a whole."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig

LOGITS_PER_TILE = 1 << 25


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """What to read off the head at each loss term."""

    targets: Tensor
    """Sampled token [terms]."""
    top_ids: Tensor
    """Further tokens to score, -1 where there is none [terms, K]."""
    candidates: Tensor | None
    """Candidate set over which to normalise, -1 padded; a line of -1 means the whole vocabulary [terms, C]."""
    temperature: float
    softcap: float | None = None
    """Logits are bent into (-softcap, softcap) by tanh, before the temperature (Gemma 2)."""


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """The head's log-probabilities at each loss term."""

    log_probs: Tensor
    """Of the targets, differentiable [terms]."""
    top_log_probs: Tensor
    """Of the further tokens, differentiable, -inf where there is none [terms, K]."""
    entropy: Tensor
    """Of the whole distribution in nats, detached [terms]."""


def read_head(hidden: Tensor, weight: Tensor, bias: Tensor | None, query: HeadQuery) -> HeadAnswer:
    """Score targets and top tokens from hidden states [terms, dim] and a head [vocab, dim], tile by tile."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    bias = None if bias is None else bias.to(dtype)
    inputs = (hidden.to(dtype), weight.to(dtype), bias)
    log_probs, top_log_probs, entropy = _TiledHead.apply(  # type: ignore[no-untyped-call]
        *inputs, query.targets, query.top_ids, query.candidates, query.temperature, query.softcap
    )
    return HeadAnswer(log_probs, top_log_probs, entropy)


def _tiles(num_terms: int, num_vocab: int) -> Iterator[slice]:
    step = max(1, LOGITS_PER_TILE // num_vocab)
    return (slice(start, min(start + step, num_terms)) for start in range(0, num_terms, step))


def _logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    candidates: Tensor | None,
    temperature: float,
    softcap: float | None,
) -> Tensor:
    """At least float32, soft-capped, divided by the temperature, -inf outside the candidate set [tile, vocab]."""
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits = logits / temperature
    return logits if candidates is None else logits.masked_fill_(_outside(candidates, len(weight)), -torch.inf)


def _outside(candidates: Tensor, num_vocab: int) -> Tensor:
    """Where a token is not in its line's set, bool [tile, vocab]; an empty line allows every token."""
    allowed = torch.zeros(len(candidates), num_vocab + 1, dtype=torch.bool, device=candidates.device)
    allowed.scatter_(1, torch.where(candidates < 0, num_vocab, candidates), True)
    return ~(allowed[:, :num_vocab] | (candidates < 0).all(1, keepdim=True))


def _slope(logits: Tensor, factor: float) -> Tensor:
    """Derivative of soft-capped logits by those before; outside the candidate set, where they are -inf, it is 0."""
    return 1 - (logits * factor).clamp_(min=-1).square_()


class _TiledHead(torch.autograd.Function):
    """Forward keeps one number a term (the log of the partition sum); backward computes each tile's logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        top_ids: Tensor,
        candidates: Tensor | None,
        temperature: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of each target [terms], those of `top_ids` [terms, k], and the entropy [terms].

        hidden [terms, hidden size], weight [vocabulary, hidden size], bias [vocabulary], targets [terms]; `candidates`
        [terms, most candidates], padded with negative ids as `top_ids` are.
        """
        precision = torch.promote_types(hidden.dtype, torch.float32)
        log_probs, entropy, log_norm = torch.empty(3, len(hidden), dtype=precision, device=hidden.device)
        top_log_probs = torch.empty(top_ids.shape, dtype=precision, device=hidden.device)
        for tile in _tiles(len(hidden), len(weight)):
            chosen = None if candidates is None else candidates[tile]
            logits = _logits(hidden[tile], weight, bias, chosen, temperature, softcap)
            log_norm[tile] = logits.logsumexp(-1)
            logits -= log_norm[tile].unsqueeze(-1)
            log_probs[tile] = logits.gather(1, targets[tile].unsqueeze(1)).squeeze(1)
            top = logits.gather(1, top_ids[tile].clamp(min=0))
            top_log_probs[tile] = top.masked_fill_(top_ids[tile] < 0, -torch.inf)
            entropy[tile] = torch.special.entr(logits.exp_()).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, top_ids, candidates, log_norm)
        ctx.temperature, ctx.softcap = temperature, softcap
        ctx.mark_non_differentiable(entropy)
        return log_probs, top_log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden, weight and bias from those of the log-probabilities [terms] and [terms, k]."""
        hidden, weight, bias, targets, top_ids, candidates, log_norm = ctx.saved_tensors
        grad_target, grad_top = grads[0], grads[1].masked_fill(top_ids < 0, 0.0)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=log_norm.dtype)
        grad_bias = None if bias is None else torch.zeros_like(bias, dtype=log_norm.dtype)
        for tile in _tiles(len(hidden), len(weight)):
            chosen = None if candidates is None else candidates[tile]
            logits = _logits(hidden[tile], weight, bias, chosen, ctx.temperature, ctx.softcap)
            slope = None if ctx.softcap is None else _slope(logits, ctx.temperature / ctx.softcap)
            mass = grad_target[tile] + grad_top[tile].sum(-1)
            grad = logits.sub_(log_norm[tile].unsqueeze(-1)).exp_().mul_(-mass.unsqueeze(-1))
            grad.scatter_add_(1, targets[tile].unsqueeze(1), grad_target[tile].unsqueeze(1))
            grad.scatter_add_(1, top_ids[tile].clamp(min=0), grad_top[tile])
            grad = grad if slope is None else grad.mul_(slope)
            grad = grad.div_(ctx.temperature).to(hidden.dtype)
            grad_hidden[tile] = grad @ weight
            grad_weight += grad.T @ hidden[tile]
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        grad_bias = None if bias is None else grad_bias.to(bias.dtype)  # type: ignore[union-attr]
        return grad_hidden, grad_weight.to(weight.dtype), grad_bias, None, None, None, None, None


class FusedHead(nn.Linear):
    """A language model's head that answers a query instead of giving logits, inside the model's own forward pass.

    Being part of the forward keeps gradient hooks, sharding and autocast as they are; without a query it is the head
    it replaced, with the same parameters and names.
    """

    query: HeadQuery | None = None
    capping: PretrainedConfig | None = None
    """Where the model reads, in each forward, how to soft-cap what the head gives."""

    @classmethod
    def replacing(cls, head: nn.Linear, config: PretrainedConfig | None = None) -> "FusedHead":
        """A head that shares the parameters of the given one, of a model with this text config."""
        fused = cls(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
        fused.weight, fused.bias = head.weight, head.bias
        if config is not None and config.to_dict().get("final_logit_softcapping") is not None:
            fused.capping = config
        return fused

    @contextlib.contextmanager
    def answering(self, query: HeadQuery) -> Iterator[None]:
        """Within it, a forward pass over [1, terms, dim] gives the packed answer [1, terms, 2 + K]."""
        softcap = None if self.capping is None else self.capping.final_logit_softcapping
        self.query = replace(query, softcap=softcap)
        self._let_model_cap(None)  # the answer holds log-probabilities, which must stay as they are
        try:
            yield
        finally:
            self.query = None
            self._let_model_cap(softcap)

    def _let_model_cap(self, softcap: float | None) -> None:
        if self.capping is not None:
            self.capping.final_logit_softcapping = softcap

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits, or the packed answer while a query is set."""
        if self.query is None:
            return super().forward(hidden)
        answer = read_head(hidden.squeeze(0), self.weight, self.bias, self.query)
        columns = [answer.log_probs.unsqueeze(1), answer.entropy.unsqueeze(1), answer.top_log_probs]
        return torch.cat(columns, dim=1).unsqueeze(0)


def unpack_answer(packed: Tensor) -> HeadAnswer:
    """Undo FusedHead's packing [1, terms, 2 + K]."""
    columns = packed.squeeze(0)
    return HeadAnswer(columns[:, 0], columns[:, 2:], columns[:, 1].detach())
