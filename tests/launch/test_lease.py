import threading

import pytest

from agrpo.errors import LeaseLost, StoreOutage
from agrpo.launch.lease import LeaseFollower, LeaseKeeper
from agrpo.store import Attempt, Store, leases
from tests.worlds.processes import eventually


def test_a_takeover_is_reported_once(store: Store, attempt: Attempt) -> None:
    lost: list[Exception] = []
    keeper = LeaseKeeper(attempt, ttl_s=0.0, every_s=0.05, on_lost=lost.append)
    keeper.start()
    leases.acquire(store, "r1", leases.this_process())
    eventually(lambda: lost)
    assert isinstance(lost[0], LeaseLost)
    keeper.stop()
    assert len(lost) == 1


def test_a_lease_that_was_lost_before_is_noticed_at_the_start(store: Store, attempt: Attempt) -> None:
    leases.renew(attempt, ttl_s=-1.0)
    leases.acquire(store, "r1", leases.this_process())
    with pytest.raises(LeaseLost):
        LeaseKeeper(attempt, ttl_s=30.0, every_s=5.0, on_lost=print).start()


class SilentStore(Store):
    """A database that stops to answer."""

    def __init__(self, store: Store) -> None:
        self.__dict__.update(store.__dict__)
        self.silent = threading.Event()

    def write(self):  # type: ignore[no-untyped-def]
        if self.silent.is_set():
            raise StoreOutage("no answer")
        return super().write()


def test_an_outage_costs_the_lease_only_when_its_time_is_over(store: Store, attempt: Attempt) -> None:
    silent = SilentStore(store)
    lost: list[Exception] = []
    keeper = LeaseKeeper(Attempt(silent, "r1", attempt.token), ttl_s=1.0, every_s=0.05, on_lost=lost.append)
    keeper.start()
    keeper.check_time()
    silent.silent.set()

    def is_over() -> bool:
        try:
            keeper.check_time()
        except LeaseLost as error:
            return "could not be renewed for 1 s" in str(error)
        return False

    assert not is_over() and keeper.is_surely_held()
    eventually(is_over, within_s=3)
    silent.silent.clear()
    eventually(lambda: not is_over())
    assert keeper.is_surely_held()
    keeper.stop()
    assert lost == []


def test_a_follower_renews_nothing_and_notices_a_takeover(store: Store, attempt: Attempt) -> None:
    lost: list[Exception] = []
    follower = LeaseFollower(attempt, ttl_s=30.0, every_s=0.05, on_lost=lost.append)
    before = leases.attempts(store, "r1")[-1].renewed_at
    follower.start()
    assert leases.attempts(store, "r1")[-1].renewed_at == before and not follower.is_surely_held()
    leases.release(attempt, "stopped")
    leases.acquire(store, "r1", leases.this_process())
    eventually(lambda: lost)
    assert isinstance(lost[0], LeaseLost)
    follower.stop()
