import pytest

from agrpo.errors import StatusConflict
from agrpo.store import servers
from tests.worlds.small_groups import start_run, start_worker

URL = "http://127.0.0.1:8000"


def only(store):
    (record,) = servers.servers(store, "small")
    return record


def test_a_server_starts_with_unknown_weights(store, attempt, worker):
    number = servers.register(attempt, URL, 0, worker, {"max_model_len": 64})
    assert only(store) == servers.ServerRecord(number, URL, 0, worker, "starting", None, {"max_model_len": 64})
    servers.set_state(attempt, number, "healthy")
    servers.confirm_version(attempt, number, 0)
    servers.confirm_version(attempt, number, 1)
    servers.confirm_version(attempt, number, 1)
    assert (only(store).state, only(store).weight_version) == ("healthy", 1)


def test_the_same_process_keeps_its_weights_when_registered_again(store, attempt, worker):
    number = servers.register(attempt, URL, 0, worker)
    servers.confirm_version(attempt, number, 3)
    assert servers.register(attempt, URL, 0, worker) == number
    assert (only(store).state, only(store).weight_version) == ("starting", 3)


@pytest.mark.parametrize("launched", [True, False])
def test_a_new_process_at_the_url_has_unknown_weights(store, attempt, worker, launched):
    """A server given by URL may have been restarted behind our back, so it is published to again."""
    number = servers.register(attempt, URL, 0, worker if launched else None)
    servers.confirm_version(attempt, number, 3)
    assert servers.register(attempt, URL, 0, start_worker(attempt) if launched else None) == number
    assert only(store).weight_version is None


def test_a_confirmation_that_comes_after_a_restart_counts_for_nothing(store, attempt, worker):
    number = servers.register(attempt, URL, 0, worker)
    servers.register(attempt, URL, 0, start_worker(attempt))
    assert not servers.confirm_version(attempt, number, 3, process_id=worker)
    assert only(store).weight_version is None


def test_weights_of_a_lost_or_doubted_server_are_unknown(store, attempt, worker):
    number = servers.register(attempt, URL, 0)
    for lose in (lambda: servers.set_state(attempt, number, "lost"), lambda: servers.doubt(attempt, number)):
        assert servers.confirm_version(attempt, number, 3)
        lose()
        servers.set_state(attempt, number, "healthy")
        assert only(store).weight_version is None


def test_servers_of_another_run_are_not_touched(store, attempt, worker):
    number = servers.register(attempt, URL, 0, worker)
    other = start_run(store, "other")
    assert servers.register(other, URL, 0) != number
    with pytest.raises(StatusConflict):
        servers.set_state(other, number, "lost")
    assert only(store).state == "starting"
