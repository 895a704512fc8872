"""One row through the model and the loss."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agrpo.attention import TreeAttention
from agrpo.losses import LOSSES, Band, LossTerms
from agrpo.losses.head import FusedHead, HeadQuery, unpack_answer
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.rows import Row


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a row gave."""

    total: Tensor
    """Sum over the row's terms, differentiable scalar."""
    aux_loss: Tensor | None
    """Load-balancing loss before its coefficient, over the row's forwarded tokens, a shared one once; scalar."""
    marks: dict[str, Tensor]
    """Name -> [terms], detached."""


class RowLoss:
    """The objective that the settings choose, on a model whose head is fused."""

    def __init__(self, head: FusedHead, args: AsyncGRPOConfig, router_coefficient: float) -> None:
        self._head = head
        self._loss = LOSSES["centered" if args.score_centering else "clipped"]
        self._band = Band(
            clip_min=args.vllm_importance_sampling_clip_min,
            clip_max=args.vllm_importance_sampling_clip_max,
            epsilon=args.epsilon,
            epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        )
        self._temperature = args.temperature
        self._router_coefficient = router_coefficient

    def __call__(self, model: nn.Module, row: Row, attention: TreeAttention) -> RowResult:
        """Forward a row through `model`, which may be a wrapper of the policy that `attention` was installed in."""
        extras = {"output_router_logits": True} if self._router_coefficient else {}
        with self._head.answering(HeadQuery(row.targets, row.top_ids, row.candidates, self._temperature)):
            output = model(
                input_ids=row.input_ids,
                position_ids=row.position_ids,
                logits_to_keep=row.positions,
                use_cache=False,
                **attention.prepare(row.layout, row.input_ids.device),
                **extras,
            )
        answer = unpack_answer(output.logits)
        terms = LossTerms(
            log_probs=answer.log_probs,
            top_log_probs=answer.top_log_probs,
            sampler_log_probs=row.sampler_log_probs,
            sampler_top_log_probs=row.sampler_top_log_probs,
            advantages=row.advantages,
        )
        loss = self._loss(terms, self._band)
        total, aux_loss = loss.total, None
        if self._router_coefficient:
            # Weighted like any other term of the row: the step divides by its trained tokens.
            aux_loss = output.aux_loss
            total = total + self._router_coefficient * aux_loss * row.num_terms
        return RowResult(total, aux_loss, loss.marks | {"entropy": answer.entropy.detach()})


def to_device(row: Row, device: torch.device) -> Row:
    """The row where the model is."""
    return row if row.input_ids.device == device else row.to(device)
