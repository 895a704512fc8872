"""Do the servers compute with the weights the trainer has? A short text, scored by both."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agrpo.errors import BadInput
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.greeting import capabilities_of
from agrpo.trainer.policy_model import in_trees
from agrpo.trees import pack
from agrpo.weights.probe import TOLERANCES, check_probe

TEXT = "The quick brown fox jumps over the lazy dog, 0 1 2 3 4 5 6 7 8 9."


class Probe(Protocol):
    """Compares a server with the trainer."""

    def read(self) -> None:
        """On every rank of a sharded model: compute what the next checks compare with."""
        ...

    def check(self, url: str) -> None:
        """Raise ProbeFailed when the server serves other weights than the trainer has."""
        ...


class TextProbe:
    """Scores TEXT on both sides."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: AsyncGRPOConfig) -> None:
        self._model = model
        self._args = args
        self._token_ids: list[int] = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        if len(self._token_ids) < 2:
            raise BadInput("the tokenizer makes fewer than two tokens of a whole sentence: it is not this model's")
        self._tolerance = args.probe_tolerance
        self._dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else str(model.dtype).removeprefix("torch.")
        self._timeout_s = args.vllm_server_timeout
        self._read: Sequence[float] | None = None

    def read(self) -> None:
        """Score TEXT with all ranks; the checks until the next call compare with it."""
        self._read = self._own_log_probs()

    def check(self, url: str) -> None:
        """Raise ProbeFailed with the numbers when the log-probabilities differ; ServerOutage when there are none."""
        own = self._own_log_probs() if self._read is None else self._read
        check_probe(url, self._token_ids, own, self._tolerance_for(url), self._timeout_s)

    def _tolerance_for(self, url: str) -> float:
        if self._tolerance is not None:
            return self._tolerance
        served = capabilities_of(url, self._timeout_s).dtype or self._dtype
        return max(TOLERANCES.get(dtype, max(TOLERANCES.values())) for dtype in (served, self._dtype))

    def _own_log_probs(self) -> Sequence[float]:
        ids = torch.tensor([self._token_ids], device=self._model.device)
        was_training = self._model.training
        self._model.train(False)
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        layout = pack([(np.array(self._token_ids), np.zeros(ids.shape[1], bool))]).layout
        with torch.no_grad(), in_trees(self._model, self._args) as attention:
            tree = attention.prepare(layout, ids.device)
            logits = self._model(ids, position_ids=positions, use_cache=False, **tree).logits[0]
        self._model.train(was_training)
        chosen = logits[:-1].float().log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
        return [float("nan"), *chosen.tolist()]
