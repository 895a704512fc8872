"""Every stored array of a run: does it decode, is it as it was written, and do the turns give the samples?"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, Select, and_, func, or_, select

from agrpo import codec
from agrpo.errors import BadInput
from agrpo.sequences import build_sequences
from agrpo.store import schema
from agrpo.store.payload import ARRAYS, digest, read_turns

_groups, _turns, _samples = schema.groups.c, schema.turns.c, schema.samples.c
_PER_TOKEN = ("output_mask", "candidates", "top_ids", "top_log_probs")
_BATCH = 256
"""Groups read at a time."""

_Rollout = tuple[int, int]
"""Group and member."""
_Size = tuple[int, int]
"""Forwarded and trained tokens of a sample."""


@dataclass(frozen=True, slots=True)
class Found:
    """Arrays that are not as they were written."""

    check: str
    says: str
    row: dict[str, Any]


@dataclass(slots=True)
class Payload:
    """What was read, and what of it is broken."""

    num_turns: int = 0
    num_tokens: int = 0
    broken: list[Found] = field(default_factory=list)

    def add(self, problem: str, **row: Any) -> None:
        """Note what is broken, and where."""
        self.broken.append(Found("payload", problem, row))


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn whose arrays were read."""

    row: Row[Any]
    problem: str | None
    num_suffix: int = 0
    num_outputs: int = 0
    num_trainable: int = 0
    """Generated tokens that its mask does not exclude."""


def broken_payloads(connection: Connection, run_id: str) -> Payload:
    """Read all arrays of a run's groups, also of those it shares with another run."""
    found = Payload()
    stored = connection.execute(_groups_with_arrays(run_id), execution_options={"yield_per": _BATCH})
    # zlib and the hash let other threads run.
    with ThreadPoolExecutor(2) as pool:
        for groups in stored.partitions():
            sound = {row.id: row for row in groups if _is_sound(row, found)}
            query = select(schema.turns).where(_turns.group_id.in_([row.id for row in groups]))
            rows = sorted(connection.execute(query), key=lambda row: (row.group_id, row.member, row.turn))
            turns = list(pool.map(_read, rows))
            _note_turns(turns, found)
            _check_samples(sound, turns, _samples_of(connection, list(sound)), found)
    return found


def _groups_with_arrays(run_id: str) -> Select[Any]:
    """All but those that were pruned, and prompts that gave no rollouts."""
    own = schema.groups.alias("own")
    written = and_(_groups.pruned_at.is_(None), or_(_groups.status == "claimed", _groups.version.is_not(None)))
    stands_for = _groups.id == func.coalesce(own.c.shared_group_id, own.c.id)
    columns = (_groups.id, _groups.status, _groups.prompt_ids, _groups.digest)
    return select(*columns).join(own, stands_for).where(own.c.run_id == run_id, written)


def _is_sound(row: Row[Any], found: Payload) -> bool:
    try:
        if row.prompt_ids is None:
            problem = None if row.status == "claimed" else "prompt_ids are missing"
        else:
            codec.num_entries(row.prompt_ids)
            is_same = row.digest is None or digest([row.prompt_ids]) == row.digest
            problem = None if is_same else "prompt_ids are not the bytes that were written"
    except ValueError as error:
        problem = f"prompt_ids: {error}"
    if problem is not None:
        found.add(problem, group_id=row.id)
    return problem is None


def _read(row: Row[Any]) -> _Turn:
    values = row._mapping
    if row.digest is not None and digest(values[name] for name in ARRAYS) != row.digest:
        return _Turn(row, "a turn's arrays are not the bytes that were written")
    lengths: dict[str, int] = {}
    for name in ARRAYS:
        if values[name] is not None:
            try:
                lengths[name] = codec.num_entries(values[name])
            except ValueError as error:
                return _Turn(row, f"{name}: {error}")
    num_outputs = lengths["output_ids"]
    for name in _PER_TOKEN:
        if lengths.get(name, num_outputs) != num_outputs:
            return _Turn(row, f"{name} has {lengths[name]} entries for {num_outputs} generated tokens")
    masked = row.output_mask is not None
    num_trainable = int(np.count_nonzero(codec.decode_ints(row.output_mask))) if masked else num_outputs
    return _Turn(row, None, lengths["prompt_suffix"], num_outputs, num_trainable)


def _note_turns(turns: Sequence[_Turn], found: Payload) -> None:
    found.num_turns += len(turns)
    for turn in turns:
        found.num_tokens += turn.num_suffix + turn.num_outputs
        if turn.problem is not None:
            row = turn.row
            found.add(turn.problem, group_id=row.group_id, member=row.member, turn=row.turn)


def _samples_of(connection: Connection, group_ids: list[int]) -> dict[_Rollout, list[_Size]]:
    columns = (_samples.group_id, _samples.member, _samples.num_tokens, _samples.num_trained)
    order = (_samples.group_id, _samples.member, _samples.part)
    found: dict[_Rollout, list[_Size]] = {}
    for group_id, member, *size in connection.execute(
        select(*columns).where(_samples.group_id.in_(group_ids)).order_by(*order)
    ):
        found.setdefault((group_id, member), []).append((size[0], size[1]))
    return found


def _check_samples(
    groups: dict[int, Row[Any]], turns: Sequence[_Turn], samples: dict[_Rollout, list[_Size]], found: Payload
) -> None:
    """Each generated token is trained at most once: a rollout's samples are those that its turns give."""
    by_rollout = groupby(turns, key=lambda turn: (turn.row.group_id, turn.row.member))
    rollouts = {rollout: list(of) for rollout, of in by_rollout}
    for rollout in sorted(rollouts.keys() | samples.keys()):
        group, own = groups.get(rollout[0]), rollouts.get(rollout, [])
        if group is None or any(turn.problem for turn in own):
            continue  # said already
        where = {"group_id": rollout[0], "member": rollout[1]}
        stored, most = samples.get(rollout, []), _most(group.prompt_ids, own)
        if most is None:
            found.add("a turn shares more tokens than were held before it, or the turn before it is missing", **where)
        elif group.status != "claimed" and not _fits(stored, most) and stored != _given(group.prompt_ids, own):
            found.add("a rollout's samples are not those that its turns give", **where, samples=stored)


def _most(prompt_ids: bytes | None, turns: Sequence[_Turn]) -> list[_Size] | None:
    """Sizes of the samples when every token that no mask excludes is trained; None: the turns do not fit each other."""
    held = 0 if prompt_ids is None else codec.num_entries(prompt_ids)
    sizes: list[_Size] = []
    for number, turn in enumerate(turns):
        if turn.row.turn != number or turn.row.num_shared > held:
            return None
        continues = number > 0 and turn.row.num_shared == held
        held = turn.row.num_shared + turn.num_suffix + turn.num_outputs
        before = sizes.pop()[1] if continues else 0
        sizes.append((held, before + turn.num_trainable))
    return [size for size in sizes if size[1]]


def _fits(stored: list[_Size], most: list[_Size]) -> bool:
    """Whether it can be so, without a look at the tokens: most can be trained if their mask says so."""
    pairs = zip(stored, most, strict=False)
    return len(stored) == len(most) and all(ours[0] == full[0] and ours[1] <= full[1] for ours, full in pairs)


def _given(prompt_ids: bytes, turns: Sequence[_Turn]) -> list[_Size] | None:
    """Sizes of the samples that the tokens of the turns give; None: they cannot be read."""
    try:
        rows = [turn.row for turn in turns]
        sequences = build_sequences(read_turns(codec.decode_ints(prompt_ids).tolist(), rows))
    except (ValueError, BadInput):
        return None
    return [(sequence.num_tokens, sequence.num_trained) for sequence in sequences]
