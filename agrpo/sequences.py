"""Turns to samples: every generated token is trained once, in its exact context."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

import numpy as np

from agrpo.errors import BadInput
from agrpo.records import TrainingSequence, TurnRecord

VLLM_FLOOR = -9999.0
"""vLLM writes this for minus infinity and NaN, which JSON cannot hold."""


def build_sequences(turns: list[TurnRecord]) -> list[TrainingSequence]:
    """The samples of a rollout: a turn that continues the tokens held so far extends a sample, any other starts one.

    So does one with candidate sets after one without, or the other way round: a sample has them for all or none. Tokens
    without a usable log-probability and tokens outside their own candidate set stay as context. Samples without a
    trained token are left out. Raises BadInput when a turn's lists disagree in length.
    """
    return [draft.finish() for draft in _drafts(turns) if any(draft.trained)]


def drift_tokens(turns: list[TurnRecord]) -> list[int]:
    """Held tokens that each turn after the first rendered differently; 0 where it continued the same sample."""
    drifts = []
    for earlier, later in pairwise(turns):
        held = earlier.prompt_ids + earlier.output_ids
        drifts.append(len(held) - _common_prefix(held, later.prompt_ids))
    return drifts


def num_refused_tokens(turns: list[TurnRecord]) -> int:
    """Generated tokens that should be trained and cannot be: no log-probability, or not in their candidate set."""
    return sum(_wanted(turn, i) and not _usable(turn, i) for turn in turns for i in range(len(turn.output_ids)))


def is_given(log_prob: float | None) -> bool:
    """Whether the server gave a log-probability: neither null nor NaN, infinite or vLLM's floor."""
    return log_prob is not None and isfinite(log_prob) and log_prob > VLLM_FLOOR


@dataclass(slots=True)
class _Draft:
    """A sample while turns are still being added; the lists run in parallel."""

    token_ids: list[int]
    trained: list[bool]
    log_probs: list[float]
    top: list[dict[int, float] | None] = field(default_factory=list)
    candidates: list[list[int] | None] = field(default_factory=list)

    def takes(self, turn: TurnRecord) -> bool:
        """Whether a turn continues the tokens, and all that are trained have a candidate set, or none has."""
        if turn.prompt_ids[: len(self.token_ids)] != self.token_ids:
            return False
        if not self.candidates or not _trains(turn):
            return True
        return (self.candidates[-1] is None) == (turn.output_sampling_mask is None)

    def add_context(self, token_ids: list[int]) -> None:
        """Tokens that the model read."""
        self.token_ids += token_ids
        self.trained += [False] * len(token_ids)
        self.log_probs += [float("nan")] * len(token_ids)

    def add_output(self, turn: TurnRecord) -> None:
        """Tokens that the model wrote; those without what the loss needs are only forwarded."""
        for i, token_id in enumerate(turn.output_ids):
            # Nothing predicts the very first token of a sample, so it has no loss term.
            trained = _wanted(turn, i) and _usable(turn, i) and bool(self.token_ids)
            self.token_ids.append(token_id)
            self.trained.append(trained)
            self.log_probs.append(turn.output_log_probs[i] if trained else float("nan"))
            if trained:
                self.top.append(turn.output_sampler_logprobs[i] if turn.output_sampler_logprobs is not None else None)
                self.candidates.append(turn.output_sampling_mask[i] if turn.output_sampling_mask is not None else None)

    def finish(self) -> TrainingSequence:
        """The sample; the sampler's most likely tokens are in it only when every trained token has them."""
        has_top = _all_given(self.top)
        pairs = zip(self.top, self.candidates, strict=True) if has_top else ()
        top = [_known(entry, allowed) for entry, allowed in pairs]
        return TrainingSequence(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            trained=np.array(self.trained, dtype=bool),
            log_probs=np.array(self.log_probs, dtype=np.float32),
            top_ids=[ids for ids, _ in top] if has_top else None,
            top_log_probs=[log_probs for _, log_probs in top] if has_top else None,
            candidates=[np.array(ids, dtype=np.int32) for ids in self.candidates if ids is not None]
            if _all_given(self.candidates)
            else None,
        )


def _drafts(turns: list[TurnRecord]) -> Iterator[_Draft]:
    draft: _Draft | None = None
    for turn in turns:
        _check_lengths(turn)
        if not turn.output_ids:  # a prompt that left no room would only add tokens that nothing trains on
            continue
        if draft is not None and draft.takes(turn):
            draft.add_context(turn.prompt_ids[len(draft.token_ids) :])
        else:
            if draft is not None:
                yield draft
            draft = _Draft([], [], [])
            draft.add_context(turn.prompt_ids)
        draft.add_output(turn)
    if draft is not None:
        yield draft


def _trains(turn: TurnRecord) -> bool:
    return any(turn.output_mask) if turn.output_mask is not None else bool(turn.output_ids)


def _wanted(turn: TurnRecord, i: int) -> bool:
    return turn.output_mask is None or bool(turn.output_mask[i])


def _usable(turn: TurnRecord, i: int) -> bool:
    log_prob = turn.output_log_probs[i]
    in_set = turn.output_sampling_mask is None or turn.output_ids[i] in turn.output_sampling_mask[i]
    return is_given(log_prob) and in_set


def _known(top: dict[int, float] | None, allowed: list[int] | None) -> tuple[np.ndarray, np.ndarray]:
    """The entries with a real log-probability, inside the candidate set (section 5: or 0 times -inf makes NaN)."""
    kept = {
        token_id: log_prob
        for token_id, log_prob in (top or {}).items()
        if is_given(log_prob) and (allowed is None or token_id in allowed)
    }
    return np.array(list(kept), dtype=np.int32), np.array(list(kept.values()), dtype=np.float32)


def _all_given(values: Sequence[object | None]) -> bool:
    return all(value is not None for value in values)


def _common_prefix(held: list[int], prompt: list[int]) -> int:
    for i, (ours, theirs) in enumerate(zip(held, prompt, strict=False)):
        if ours != theirs:
            return i
    return min(len(held), len(prompt))


def _check_lengths(turn: TurnRecord) -> None:
    num_outputs = len(turn.output_ids)
    lists: dict[str, Sequence[object] | None] = {
        "output_log_probs": turn.output_log_probs if _trains(turn) else None,
        "output_mask": turn.output_mask,
        "output_sampling_mask": turn.output_sampling_mask,
        "output_sampler_logprobs": turn.output_sampler_logprobs,
    }
    for name, values in lists.items():
        if values is not None and len(values) != num_outputs:
            raise BadInput(
                f"TurnRecord.{name} has {len(values)} entries for {num_outputs} output_ids; give one entry per token"
            )
