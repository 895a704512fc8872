"""Turns kept while their group is still being generated."""

import pytest

from agrpo.errors import StatusConflict
from agrpo.store import drafts, groups, leases
from agrpo.store.drafts import Draft, NewTurn
from agrpo.store.verify import verify
from tests.worlds.small_groups import DEAD, group, start_worker, turn

FIRST, SECOND, OTHER = turn([1, 2, 3], [4, 5]), turn([1, 2, 3, 4, 5, 9], [6]), turn([1, 2, 3, 4, 5, 8], [7])


@pytest.fixture
def claim(attempt, worker):
    return groups.claim(attempt, worker, 1)[0]


def new(claim, member, position, before, turn):
    return NewTurn(claim.group_id, member, position, 3, before, turn)


def test_turns_come_back_as_they_were(attempt, claim):
    drafts.add(attempt, [new(claim, 0, 0, None, FIRST), new(claim, 2, 0, None, FIRST)])
    drafts.add(attempt, [new(claim, 0, 1, FIRST, SECOND)])
    assert drafts.of_group(attempt.store, claim.group_id) == [Draft(0, 3, [FIRST, SECOND]), Draft(2, 3, [FIRST])]
    assert verify(attempt.store, attempt.run_id).problems == []
    assert verify(attempt.store, attempt.run_id).num_turns == 3


def test_a_turn_replaces_what_was_at_its_place_and_after(attempt, claim):
    drafts.add(attempt, [new(claim, 0, 0, None, FIRST), new(claim, 0, 1, FIRST, SECOND)])
    drafts.add(attempt, [new(claim, 0, 1, FIRST, OTHER)])
    assert drafts.of_group(attempt.store, claim.group_id) == [Draft(0, 3, [FIRST, OTHER])]
    drafts.add(attempt, [new(claim, 0, 0, None, OTHER)])
    assert drafts.of_group(attempt.store, claim.group_id) == [Draft(0, 3, [OTHER])]


def test_they_outlive_the_attempt_and_go_with_the_commit(attempt, claim):
    drafts.add(attempt, [new(claim, 0, 0, None, FIRST)])
    successor = leases.acquire(attempt.store, attempt.run_id, DEAD)
    (again,) = groups.claim(successor, start_worker(successor), 1)
    assert again == claim
    assert drafts.of_group(attempt.store, claim.group_id) == [Draft(0, 3, [FIRST])]
    groups.commit(successor, group(claim))
    assert drafts.of_group(attempt.store, claim.group_id) == []
    assert verify(attempt.store, attempt.run_id).problems == []
    with pytest.raises(StatusConflict, match="no longer claimed"):
        drafts.add(successor, [new(claim, 0, 0, None, FIRST)])


@pytest.mark.parametrize("end", ["skip", "discard"])
def test_they_go_when_nobody_wants_them(attempt, claim, end):
    drafts.add(attempt, [new(claim, 0, 0, None, FIRST)])
    if end == "skip":
        groups.skip(attempt, claim.group_id, "failed")
    else:
        drafts.discard(attempt, claim.group_id)
    assert drafts.of_group(attempt.store, claim.group_id) == []
    assert verify(attempt.store, attempt.run_id).problems == []
