"""The turns of a group as they come back: kept at once, and given again instead of generated when a group is resumed.

A resumed rollout is run from its start. What it asked before it gets answered as it was, without any server, also when
an agent's requests beside each other come in another order; for any other prompt it generates. Its tools run again, as
they do after an outage.
"""

from collections.abc import Callable
from copy import copy
from typing import Protocol

from agrpo import versions
from agrpo.records import TurnRecord
from agrpo.store.drafts import Draft, NewTurn


class Drafts(Protocol):
    """Where turns are kept."""

    async def drafts(self, group_id: int) -> list[Draft]:
        """The unfinished rollouts of a claimed group."""

    async def discard(self, group_id: int) -> None:
        """Forget them."""

    def keep(self, turn: NewTurn) -> None:
        """Store a turn soon; who waits for the store afterwards waits for it too."""


class MemberJournal:
    """The turns of one try at a rollout."""

    def __init__(
        self, group_id: int, member: int, version: int, known: list[TurnRecord], keep: Callable[[NewTurn], None]
    ):
        self.version = version
        """Policy version when it started."""
        self._group_id = group_id
        self._member = member
        self._turns = known
        self._given: set[int] = set()
        """Places of those that this try has had."""
        self._keep = keep
        self._is_over = False

    def again(self) -> "MemberJournal":
        """The journal of the next try, from the rollout's start: it gives what this one holds, which is over."""
        self.close()
        return MemberJournal(self._group_id, self._member, self.version, self._turns, self._keep)

    def close(self) -> None:
        """The try is over; a turn that comes back late, for somebody who asked beside it, is nobody's."""
        self._is_over = True

    def forget(self) -> None:
        """Nothing that came back is given again."""
        self._turns, self._given = [], set()

    def recall(self, prompt_ids: list[int]) -> TurnRecord | None:
        """What came back for this prompt before, and was not given in this try; None: it must be generated."""
        for place, turn in enumerate(self._turns):
            if place not in self._given and turn.prompt_ids == prompt_ids:
                self._given.add(place)
                return copy(turn)  # a hook may change its own
        return None

    def note(self, turn: TurnRecord) -> None:
        """A turn came back."""
        if self._is_over:
            return
        turn, place = copy(turn), len(self._turns)
        before = self._turns[-1] if self._turns else None
        self._turns = [*self._turns, turn]
        self._given.add(place)
        self._keep(NewTurn(self._group_id, self._member, place, self.version, before, turn))


class GroupJournal:
    """The turns of one group, with those of an earlier attempt where they are still fresh."""

    def __init__(self, group_id: int, kept: list[Draft], keep: Callable[[NewTurn], None]) -> None:
        self._group_id = group_id
        self._kept = {draft.member: draft for draft in kept}
        self._keep = keep

    def began(self, version: int) -> int:
        """Policy version of the oldest rollout, when those that are not given again began at `version` or later."""
        return min([version, *(draft.version for draft in self._kept.values())])

    def member(self, number: int, version: int) -> MemberJournal:
        """The journal of a rollout that starts under this policy version, or started under an earlier one."""
        kept = self._kept.get(number)
        known, began = ([], version) if kept is None else (kept.turns, kept.version)
        return MemberJournal(self._group_id, number, began, known, self._keep)


async def open_journal(drafts: Drafts, group_id: int, version: int, max_staleness: int) -> GroupJournal:
    """A group's journal; turns that are too old to be trained are forgotten, and the group begins anew."""
    kept = await drafts.drafts(group_id)
    if any(versions.is_stale(version, draft.version, max_staleness) for draft in kept):
        await drafts.discard(group_id)
        kept = []
    return GroupJournal(group_id, kept, drafts.keep)
