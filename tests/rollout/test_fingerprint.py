"""Data sets that are the same, and those that only look like it."""

import pytest
from datasets import Dataset, IterableDataset

from agrpo.errors import BadInput
from agrpo.rollout.fingerprint import NUM_ROWS_OF_TABLE, fingerprint
from agrpo.store import runs
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.scripted_server import ScriptedServer


def test_the_same_rows_in_any_container_have_the_same_fingerprint():
    assert fingerprint(rows(5)) == fingerprint(Dataset.from_list(rows(5))) == fingerprint(rows(5))
    assert fingerprint(rows(5)).startswith("5 rows, ")


@pytest.mark.parametrize(
    "change", [lambda r: r[:-1], lambda r: r[::-1], lambda r: [*r[:-1], {**r[-1], "number": -1}], lambda r: [*r, r[0]]]
)
def test_a_change_is_seen(change):
    assert fingerprint(change(rows(5))) != fingerprint(rows(5))


def test_a_large_table_is_sampled_with_its_end():
    large = rows(NUM_ROWS_OF_TABLE * 2 + 1)
    assert fingerprint([*large[:-1], large[0]]) != fingerprint(large)


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
        runs.accept_data(world.store, "run")
        seen = len(server.requests)
        world.run(world.spec(rows(5)), lambda: len(server.requests) > seen)
