"""The worker's side of the store."""

import asyncio

from agrpo.rollout.ledger import Ledger
from agrpo.store import Store, events, servers
from tests.worlds.small_groups import start_run, start_worker


def test_the_weights_of_a_server_that_the_run_started_are_doubted_as_well(tmp_path) -> None:
    """Its process is still the one that had confirmed them."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    attempt = start_run(store)
    worker = start_worker(attempt)
    number = servers.register(attempt, "http://127.0.0.1:1", 0, process_id=worker)
    servers.set_state(attempt, number, "healthy")
    servers.confirm_version(attempt, number, 3)
    ledger = Ledger(attempt, worker)
    asyncio.run(ledger.distrust(servers.servers(store, "small")[0]))
    ledger.close()
    (server,) = servers.servers(store, "small")
    assert (server.state, server.weight_version) == ("healthy", None)
    assert [event.kind for event in events.events(store, "small")] == ["server_lost_weights"]
    store.close()
