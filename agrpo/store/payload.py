"""Turns as rows: a prompt is stored as what it adds to the tokens held before it, arrays through agrpo.codec."""

from collections.abc import Iterable, Sequence
from typing import Any

import xxhash
from sqlalchemy import Row

from agrpo import codec
from agrpo.records import TurnRecord

ARRAYS = ("prompt_suffix", "output_ids", "output_log_probs", "output_mask", "candidates", "top_ids", "top_log_probs")
"""Columns of `turns` that hold arrays, in the order in which they are digested."""


def digest(arrays: Iterable[bytes | None]) -> str:
    """Hash of stored arrays; their lengths count, so that no byte can move from one to the next."""
    found = xxhash.xxh3_128()
    for data in arrays:
        found.update(b"-" if data is None else len(data).to_bytes(8, "little"))
        found.update(data or b"")
    return found.hexdigest()


def turn_rows(
    group_id: int, member: int, prompt_ids: Sequence[int], turns: Sequence[TurnRecord]
) -> list[dict[str, Any]]:
    """Rows of a rollout's turns; its first prompt is compared with the group's, any other with the turn before it."""
    rows, held = [], list(prompt_ids)
    for position, turn in enumerate(turns):
        rows.append(turn_row(group_id, member, position, held, turn))
        held = [*turn.prompt_ids, *turn.output_ids]
    return rows


def turn_row(group_id: int, member: int, position: int, held: Sequence[int], turn: TurnRecord) -> dict[str, Any]:
    """The row of one turn; `held` are the tokens known before it."""
    shared = codec.num_shared(held, turn.prompt_ids)
    key = {"group_id": group_id, "member": member, "turn": position}
    prompt = {"num_shared": shared, "prompt_suffix": codec.encode_ints(turn.prompt_ids[shared:])}
    row: dict[str, Any] = key | prompt | _output_columns(turn)
    return row | {"digest": digest(row[name] for name in ARRAYS)}


def read_turns(prompt_ids: Sequence[int], rows: Iterable[Row[Any]]) -> list[TurnRecord]:
    """The turns of one rollout from its rows in order."""
    turns, held = [], list(prompt_ids)
    for row in rows:
        prompt = [*held[: row.num_shared], *codec.decode_ints(row.prompt_suffix).tolist()]
        turn = _turn(prompt, row)
        turns.append(turn)
        held = [*prompt, *turn.output_ids]
    return turns


def _output_columns(turn: TurnRecord) -> dict[str, Any]:
    mask, candidates, top = turn.output_mask, turn.output_sampling_mask, turn.output_sampler_logprobs
    return {
        "output_ids": codec.encode_ints(turn.output_ids),
        "output_log_probs": codec.encode_floats(turn.output_log_probs),
        "output_mask": None if mask is None else codec.encode_ints(mask),
        "candidates": None if candidates is None else codec.encode_ragged_ints(candidates),
        "top_ids": None if top is None else codec.encode_ragged_ints(top),
        "top_log_probs": None if top is None else codec.encode_ragged_floats([at.values() for at in top]),
        "finish_reason": turn.finish_reason,
        "weight_versions": [list(span) for span in turn.weight_versions],
    }


def _turn(prompt: list[int], row: Row[Any]) -> TurnRecord:
    candidates = None if row.candidates is None else codec.decode_ragged_ints(row.candidates)
    return TurnRecord(
        prompt_ids=prompt,
        output_ids=codec.decode_ints(row.output_ids).tolist(),
        output_log_probs=codec.decode_floats(row.output_log_probs).tolist(),
        output_mask=None if row.output_mask is None else codec.decode_ints(row.output_mask).tolist(),
        output_sampling_mask=None if candidates is None else [ids.tolist() for ids in candidates],
        output_sampler_logprobs=None if row.top_ids is None else _top(row.top_ids, row.top_log_probs),
        finish_reason=row.finish_reason,
        weight_versions=[(version, start, end) for version, start, end in row.weight_versions],
    )


def _top(ids: bytes, log_probs: bytes) -> list[dict[int, float]]:
    pairs = zip(codec.decode_ragged_ints(ids), codec.decode_ragged_floats(log_probs), strict=True)
    return [dict(zip(at_ids.tolist(), at_log_probs.tolist(), strict=True)) for at_ids, at_log_probs in pairs]
