from agrpo.store import events, leases
from tests.worlds.small_groups import DEAD


def test_events_are_kept_in_order_with_their_attempt(store, attempt):
    events.add(attempt, "restart", "worker 0 was killed\0", exit_code=-9)
    events.add(leases.acquire(store, "small", DEAD), "adopt", "server 0 goes on", urls=["http://u"], value=float("nan"))
    first, second = events.events(store, "small")
    assert (first.token, first.kind, first.message, first.detail) == (
        1,
        "restart",
        "worker 0 was killed",
        {"exit_code": -9},
    )
    assert (second.token, second.detail) == (2, {"urls": ["http://u"], "value": "nan"})
    assert second.id > first.id
