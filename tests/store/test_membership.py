"""A process that was given up as dead but lives: it takes nothing and leaves nothing."""

import pytest

from agrpo.errors import LeaseLost, Outage
from agrpo.store import Attempt, Membership, groups, leases, processes
from tests.worlds.small_groups import DEAD, group


def test_a_process_whose_row_has_ended_writes_nothing(attempt: Attempt) -> None:
    number = processes.register(attempt, "worker", 3, 1, 1, 1, "log")
    member = Membership(attempt.store, attempt.run_id, attempt.token, number)
    (claim,) = groups.claim(member, number, 1)
    processes.ended(attempt, number, None, "silent")
    for write in (lambda: groups.commit(member, group(claim)), lambda: groups.claim(member, number, 1)):
        with pytest.raises(Outage, match=f"process {number} of run .* was given up as dead"):
            write()
    other = processes.register(attempt, "worker", 4, 1, 1, 1, "log")
    assert groups.claim(Membership(attempt.store, attempt.run_id, attempt.token, other), other, 1) == [claim]


def test_a_takeover_comes_first(attempt: Attempt) -> None:
    number = processes.register(attempt, "worker", 3, 1, 1, 1, "log")
    leases.release(attempt, "stopped")
    leases.acquire(attempt.store, attempt.run_id, DEAD)
    with pytest.raises(LeaseLost):
        Membership(attempt.store, attempt.run_id, attempt.token, number).check()
