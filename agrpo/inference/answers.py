"""What a vLLM server answers, turned into a checked TurnRecord."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from agrpo.errors import MalformedAnswer, ServerOutage
from agrpo.records import TurnRecord
from agrpo.sequences import is_given

Json = dict[str, Any]
Pairs = list[tuple[int, object]]
"""Token ids and their log-probabilities, as the server wrote them."""

_TOKEN_PREFIX = "token_id:"
_UNFINISHED = {"abort", "error"}


def from_token_endpoint(answer: Json, prompt_ids: list[int], num_top: int, restricted: bool) -> TurnRecord:
    """The turn in an answer of `/inference/v1/generate`.

    `num_top` most likely ids are kept per token. `restricted`: top-k, top-p or min-p was on and the server promised
    candidate sets; a token without a proper one gets log-probability NaN, which keeps it out of the loss.
    """
    try:
        choice = answer["choices"][0]
        ids = _ids(choice["token_ids"])
        entries = choice["logprobs"]["content"]
        log_probs = [entry["logprob"] for entry in entries]
        tops = [_pairs(entry) for entry in entries] if num_top else None
        versions = [(str(v["version"]), int(v["start"]), int(v["end"])) for v in choice.get("weight_versions") or []]
        turn = _turn(choice, prompt_ids, ids, log_probs, tops, num_top, versions)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise MalformedAnswer(f"generate answer lacks or garbles {error!r}: {str(answer)[:200]}") from error
    return with_candidates(turn, choice.get("sampling_mask")) if restricted else turn


def from_completions(answer: Json, prompt_ids: list[int], num_top: int) -> TurnRecord:
    """The turn in an answer of `/v1/completions` asked for with token ids as keys; it has no candidates or versions."""
    try:
        choice = answer["choices"][0]
        ids = _ids(choice["token_ids"])
        logprobs = choice["logprobs"]
        log_probs = logprobs["token_logprobs"]
        named = logprobs.get("top_logprobs") or [None] * len(log_probs)
        tops = [[(int(key.removeprefix(_TOKEN_PREFIX)), value) for key, value in (top or {}).items()] for top in named]
        return _turn(choice, prompt_ids, ids, log_probs, tops if num_top else None, num_top, [])
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise MalformedAnswer(f"completions answer lacks or garbles {error!r}: {str(answer)[:200]}") from error


def prompt_log_probs(answer: Json, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of each prompt token given those before it, NaN for the first [tokens]."""
    try:
        entries = answer["choices"][0]["prompt_logprobs"]
        pairs = zip(entries[1:], token_ids[1:], strict=True)
        return [math.nan, *(clean(entry[str(token)]["logprob"]) for entry, token in pairs)]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise MalformedAnswer(f"prompt log-probabilities lack or garble {error!r}: {str(answer)[:200]}") from error


def with_candidates(turn: TurnRecord, sets: object) -> TurnRecord:
    """Add the candidate sets; a token whose set is missing, or lacks it, gets log-probability NaN and itself as set."""
    num_tokens = len(turn.output_ids)
    known: list[object] = sets if isinstance(sets, list) and len(sets) == num_tokens else [None] * num_tokens
    candidates, log_probs = [], []
    for token, log_prob, found in zip(turn.output_ids, turn.output_log_probs, known, strict=True):
        fits = isinstance(found, list) and token in found
        candidates.append([int(c) for c in found] if fits and isinstance(found, list) else [token])
        log_probs.append(log_prob if fits else math.nan)
    return TurnRecord(
        prompt_ids=turn.prompt_ids,
        output_ids=turn.output_ids,
        output_log_probs=log_probs,
        output_sampling_mask=candidates,
        output_sampler_logprobs=turn.output_sampler_logprobs,
        finish_reason=turn.finish_reason,
        weight_versions=turn.weight_versions,
    )


def clean(value: object) -> float:
    """A log-probability as float, NaN for whatever the server could not give: null, NaN, infinite or vLLM's floor."""
    if value is None:
        return math.nan
    number = float(value)  # type: ignore[arg-type]
    return number if is_given(number) else math.nan


def most_likely(pairs: Iterable[tuple[int, object]], num_top: int) -> dict[int, float]:
    """The `num_top` most likely ids; the server adds the sampled one to its list even when it is not among them."""
    known = {int(token): clean(value) for token, value in pairs}
    real = [(token, value) for token, value in known.items() if not math.isnan(value)]
    return dict(sorted(real, key=lambda pair: -pair[1])[:num_top])


def _turn(
    choice: Json,
    prompt_ids: list[int],
    ids: list[int],
    log_probs: Sequence[object],
    tops: Sequence[Pairs] | None,
    num_top: int,
    versions: list[tuple[str, int, int]],
) -> TurnRecord:
    if choice.get("finish_reason") in _UNFINISHED:
        raise ServerOutage(f"the server ended the request itself: finish_reason {choice['finish_reason']!r}")
    if len(log_probs) != len(ids) or (tops is not None and len(tops) != len(ids)):
        raise MalformedAnswer(f"{len(log_probs)} log-probabilities for {len(ids)} generated tokens")
    return TurnRecord(
        prompt_ids=prompt_ids,
        output_ids=ids,
        output_log_probs=[clean(value) for value in log_probs],
        output_sampler_logprobs=None if tops is None else [most_likely(pairs, num_top) for pairs in tops],
        finish_reason=choice.get("finish_reason"),
        weight_versions=versions,
    )


def _pairs(entry: Json) -> Pairs:
    return [(top["token_id"], top["logprob"]) for top in entry.get("top_logprobs") or []]


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(token, int) for token in value):
        raise ValueError(f"token_ids {str(value)[:80]}")
    return value
