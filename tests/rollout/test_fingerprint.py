"""Data sets that are the same, and those that only look like it."""

import pytest
from datasets import Dataset, IterableDataset

from agrpo.errors import BadInput
from agrpo.rollout import fingerprint as of_data
from agrpo.rollout.fingerprint import NUM_ROWS_OF_SAMPLE, fingerprint
from agrpo.store import Store, leases, runs
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.scripted_server import ScriptedServer
from tests.worlds.small_groups import start_run


def test_the_same_rows_in_any_container_have_the_same_fingerprint():
    assert fingerprint(rows(5)) == fingerprint(Dataset.from_list(rows(5))) == fingerprint(rows(5))
    assert fingerprint(rows(5)).startswith("5 rows, ")


@pytest.mark.parametrize(
    "change", [lambda r: r[:-1], lambda r: r[::-1], lambda r: [*r[:-1], {**r[-1], "number": -1}], lambda r: [*r, r[0]]]
)
def test_a_change_is_seen(change):
    assert fingerprint(change(rows(5))) != fingerprint(rows(5))


LARGE = rows(NUM_ROWS_OF_SAMPLE * 2 + 1)
CHANGED = [LARGE[0], LARGE[0], *LARGE[2:]]
"""Its sample, every third row, is the same."""


def test_one_row_of_a_large_table_is_enough(monkeypatch):
    assert fingerprint(CHANGED) != fingerprint(LARGE) == fingerprint(Dataset.from_list(LARGE))
    monkeypatch.setattr(of_data, "NUM_ROWS_READ", len(LARGE) - 1)
    assert fingerprint(CHANGED) == fingerprint(LARGE)  # too large to be read as a whole
    assert fingerprint([*LARGE[:-1], LARGE[0]]) != fingerprint(LARGE)


def test_rows_that_take_long_to_read_are_sampled():
    """Pictures: every one would be decoded."""
    assert fingerprint([{**row, "picture": object()} for row in LARGE]).count(", ") == 1


def test_a_fingerprint_of_an_older_agrpo_is_accepted_and_completed(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    attempt = start_run(store)
    now = fingerprint(LARGE)
    old, _, everything = now.rpartition(", all ")
    assert old and everything
    runs.check_data(attempt, old)
    runs.check_data(attempt, now)
    with pytest.raises(BadInput, match="began with another data set"):
        runs.check_data(attempt, fingerprint(CHANGED))
    store.close()


def test_a_stream_is_known_by_its_beginning():
    def stream(number):
        return IterableDataset.from_generator(lambda: iter(rows(number)))

    assert fingerprint(stream(40)) == fingerprint(stream(40))
    assert fingerprint(stream(3)) != fingerprint(stream(40))


def test_a_run_refuses_other_data_until_it_is_told_to_go_on(tmp_path):
    with ScriptedServer() as server:
        world = RunWorld(tmp_path, server)
        world.run(world.spec(rows(4)), lambda: len(server.requests) >= 2)
        with pytest.raises(BadInput, match=r"4 rows, .* then, 5 rows, .* now.*agrpo resume run --accept-new-data"):
            world.run(world.spec(rows(5)), lambda: False)
        leases.release(world.attempt, "stopped")  # while somebody runs it, nothing is accepted
        runs.accept_data(world.store, "run")
        seen = len(server.requests)
        world.run(world.spec(rows(5)), lambda: len(server.requests) > seen)
