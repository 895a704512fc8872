"""Every stored array of a run: does it decode, and are its bytes those that were written?"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select

from agrpo import codec
from agrpo.store import schema
from agrpo.store.payload import ARRAYS, digest

_groups, _turns, _samples = schema.groups.c, schema.turns.c, schema.samples.c
_PER_TOKEN = ("output_mask", "candidates", "top_ids", "top_log_probs")
_BATCH = 256
"""Groups read at a time."""


@dataclass(frozen=True, slots=True)
class Found:
    """An array that is not as it was written."""

    check: str
    says: str
    row: dict[str, Any]


@dataclass(slots=True)
class Payload:
    """What was read, and what of it is broken."""

    num_turns: int = 0
    num_tokens: int = 0
    broken: list[Found] = field(default_factory=list)


def broken_payloads(connection: Connection, run_id: str) -> Payload:
    """Read all arrays of a run's groups, those that were pruned excepted."""
    found = Payload()
    holds_tokens = or_(_groups.prompt_ids.is_not(None), _groups.status == "claimed")
    columns = (_groups.id, _groups.prompt_ids, _groups.digest)
    query = select(*columns).where(_groups.run_id == run_id, holds_tokens).order_by(_groups.id)
    # zlib and the hash let other threads run.
    with ThreadPoolExecutor(2) as pool:
        for groups in connection.execute(query, execution_options={"yield_per": _BATCH}).partitions():
            _check_groups(groups, found)
            ids = [row.id for row in groups]
            turns = connection.execute(select(schema.turns).where(_turns.group_id.in_(ids))).all()
            outputs: dict[tuple[int, int], int] = {}
            for row, (problem, num_outputs, num_tokens) in zip(turns, pool.map(_check_turn, turns), strict=True):
                found.num_turns += 1
                found.num_tokens += num_tokens
                rollout = (row.group_id, row.member)
                outputs[rollout] = outputs.get(rollout, 0) + num_outputs
                if problem is not None:
                    key = {"group_id": row.group_id, "member": row.member, "turn": row.turn}
                    found.broken.append(Found("payload", problem, key))
            _check_trained(connection, ids, outputs, found)
    return found


def _check_groups(groups: Sequence[Any], found: Payload) -> None:
    for row in groups:
        if row.prompt_ids is None:
            continue
        try:
            codec.num_entries(row.prompt_ids)
            is_same = row.digest is None or digest([row.prompt_ids]) == row.digest
            problem = None if is_same else "prompt_ids are not the bytes that were written"
        except ValueError as error:
            problem = f"prompt_ids: {error}"
        if problem is not None:
            found.broken.append(Found("payload", problem, {"group_id": row.id}))


def _check_turn(row: Row[Any]) -> tuple[str | None, int, int]:
    """What is wrong with a turn, its generated tokens, and all its tokens."""
    values = row._mapping
    if row.digest is not None and digest(values[name] for name in ARRAYS) != row.digest:
        return "a turn's arrays are not the bytes that were written", 0, 0
    lengths: dict[str, int] = {}
    for name in ARRAYS:
        if values[name] is not None:
            try:
                lengths[name] = codec.num_entries(values[name])
            except ValueError as error:
                return f"{name}: {error}", 0, 0
    num_outputs = lengths["output_ids"]
    for name in _PER_TOKEN:
        if lengths.get(name, num_outputs) != num_outputs:
            return f"{name} has {lengths[name]} entries for {num_outputs} generated tokens", num_outputs, 0
    return None, num_outputs, num_outputs + lengths["prompt_suffix"]


def _check_trained(
    connection: Connection, group_ids: list[int], outputs: dict[tuple[int, int], int], found: Payload
) -> None:
    """Each generated token is trained at most once: the samples of a rollout train no more than its turns hold."""
    query = (
        select(_samples.group_id, _samples.member, func.sum(_samples.num_trained))
        .where(_samples.group_id.in_(group_ids))
        .group_by(_samples.group_id, _samples.member)
    )
    for group_id, member, num_trained in connection.execute(query):
        if num_trained > outputs.get((group_id, member), 0):
            row = {"group_id": group_id, "member": member, "num_trained": num_trained}
            row |= {"num_generated": outputs.get((group_id, member), 0)}
            found.broken.append(Found("payload", "a rollout trains more tokens than its turns hold", row))
