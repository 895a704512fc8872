"""What workers say of themselves and ask of their run."""

from agrpo.store import groups, leases, processes, runs, workers
from agrpo.store.workers import Bounds
from tests.worlds.small_groups import DEAD, group, start_run, start_worker


def test_the_bounds_of_a_worker_are_the_runs_own(attempt, worker):
    def bounds():
        return workers.bounds(attempt.store, attempt.run_id, worker)

    assert bounds() == Bounds(-1, 0, None, None, "none", 0, None)
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim))
    runs.set_allowance(attempt, 3, 500)
    runs.request(attempt.store, attempt.run_id, "drain")
    run = runs.get_run(attempt.store, attempt.run_id)
    found = bounds()
    assert found.pending_tokens > 0
    assert found == Bounds(run.policy_version, 1, 500, 3, "drain", found.pending_tokens, None)


def test_a_worker_is_told_how_much_the_other_living_ones_have_in_flight(attempt, worker):
    def elsewhere():
        return workers.bounds(attempt.store, attempt.run_id, worker).num_elsewhere

    others = [start_worker(attempt, index) for index in (1, 2)]
    for process_id, in_flight in zip([worker, *others], (1, 2, 4), strict=True):
        workers.state(attempt, process_id, in_flight, True, False, 0)
    assert elsewhere() == 6
    processes.ended(attempt, others[1], None, "killed")
    assert elsewhere() == 2
    other_run = start_run(attempt.store, "other")
    workers.state(other_run, start_worker(other_run), 8, True, False, 0)
    assert elsewhere() == 2
    leases.acquire(attempt.store, attempt.run_id, DEAD)
    assert elsewhere() is None
