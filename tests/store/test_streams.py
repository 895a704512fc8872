"""Positions of a stream are there when the claims are for which it was read, and not before."""

import pytest

from agrpo.errors import LeaseLost
from agrpo.store import Attempt, Store, groups, leases, processes, runs, streams
from agrpo.store.streams import StreamPosition
from tests.worlds.small_groups import DEAD

HERE = StreamPosition(256, {"examples_iterable": {"shard_idx": 1, "large": 2**100}, "epoch": 0}, "digest")
THERE = StreamPosition(512, None, "another")
END = StreamPosition(700, None, "", is_end=True)


def register(attempt: Attempt, index: int) -> int:
    return processes.register(attempt, "worker", index, 1, 1, 1, "log")


def test_positions_of_all_workers_are_one_list(store: Store, attempt: Attempt) -> None:
    first, second = register(attempt, 0), register(attempt, 1)
    groups.claim(attempt, first, 1, 10, [HERE, END])
    groups.claim(attempt, second, 1, 10, [HERE, THERE])
    groups.claim(attempt, second, 1, 10, [THERE])
    assert streams.positions(store, attempt.run_id) == [HERE, THERE, END]


def test_a_claim_that_is_refused_notes_nothing(store: Store, attempt: Attempt) -> None:
    worker = register(attempt, 0)
    leases.release(attempt, "stopped")
    leases.acquire(store, attempt.run_id, DEAD)
    with pytest.raises(LeaseLost):
        groups.claim(attempt, worker, 1, 10, [HERE])
    assert streams.positions(store, attempt.run_id) == []
    assert groups.groups(store, attempt.run_id) == []


def test_new_data_makes_them_void(store: Store, attempt: Attempt) -> None:
    groups.claim(attempt, register(attempt, 0), 1, 10, [HERE])
    runs.accept_data(store, attempt.run_id)
    assert streams.positions(store, attempt.run_id) == []
