import pytest

from agrpo.errors import StatusConflict
from agrpo.store import leases, processes, workers
from agrpo.store.host import boot_id, host_name
from tests.worlds.small_groups import DEAD, start_worker


def test_a_registered_process_is_live_until_its_end_is_recorded(store, attempt):
    number = processes.register(
        attempt, "server", 1, pid=7, pgid=8, pid_started=9, log_path="server-1.log", settings_hash="s", url="http://u"
    )
    (record,) = processes.live(store, "small")
    assert (record.id, record.kind, record.index, record.token) == (number, "server", 1, 1)
    assert (record.pid, record.pgid, record.pid_started, record.host, record.boot_id) == (
        7,
        8,
        9,
        host_name(),
        boot_id(),
    )
    assert (record.log_path, record.settings_hash, record.url) == ("server-1.log", "s", "http://u")
    processes.ended(attempt, number, -9, "killed\0 by hand")
    assert processes.live(store, "small") == []
    (record,) = processes.all(store, "small")
    assert (record.state, record.exit_code, record.reason) == ("ended", -9, "killed by hand")


def test_the_first_record_of_an_end_counts(store, attempt, worker):
    processes.ended(attempt, worker, -9, "killed")
    processes.ended(attempt, worker, 0, "done")
    assert processes.all(store, "small")[0].exit_code == -9


def test_restarts_are_counted_inside_an_attempt(store, attempt):
    for _ in range(3):
        processes.ended(attempt, start_worker(attempt), 1, "died")
    start_worker(attempt, index=1)
    start_worker(leases.acquire(store, "small", DEAD))
    assert [record.restarts for record in processes.all(store, "small")] == [0, 1, 2, 0, 0]


def test_an_adopted_process_belongs_to_the_new_attempt(store, attempt):
    server = processes.register(attempt, "server", 0, 7, 7, 9, "log")
    later = leases.acquire(store, "small", DEAD)
    assert processes.live(store, "small")[0].token == 1
    processes.adopt(later, server)
    assert processes.live(store, "small")[0].token == 2
    processes.ended(later, server, 0, "done")
    with pytest.raises(StatusConflict):
        processes.adopt(later, server)


def test_each_loop_has_its_own_heartbeat(store, attempt):
    processes.beat(attempt, "worker", 0, "generate", "group 3")
    processes.beat(attempt, "worker", 0, "score")
    first, score = processes.heartbeats(store, "small")
    processes.beat(attempt, "worker", 0, "generate", "group 4")
    later, same = processes.heartbeats(store, "small")
    assert (first.detail, later.detail, same) == ("group 3", "group 4", score)
    assert later.at >= first.at


def test_a_worker_that_ended_says_nothing_any_more(store, attempt, worker):
    other = start_worker(attempt, 1)
    workers.state(attempt, worker, 3, True, False, 0)
    workers.state(attempt, other, 0, False, True, 4)
    workers.state(attempt, worker, 2, True, False, 1)
    first, second = workers.states(store, "small")
    assert (first.process_id, first.in_flight, first.admission_open, first.allowance_step_seen) == (worker, 2, True, 1)
    assert (second.process_id, second.data_ended, second.allowance_step_seen) == (other, True, 4)
    processes.ended(attempt, worker, -9, "killed")
    assert [one.process_id for one in workers.states(store, "small")] == [other]
    leases.acquire(store, "small", DEAD)
    assert workers.states(store, "small") == []
