"""What workers say of themselves and ask of their run."""

from agrpo.store import groups, runs, workers
from agrpo.store.workers import Bounds
from tests.worlds.small_groups import group


def test_the_bounds_of_a_worker_are_the_runs_own(attempt, worker):
    def bounds():
        return workers.bounds(attempt.store, attempt.run_id)

    assert bounds() == Bounds(-1, 0, None, None, "none", 0)
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim))
    runs.set_allowance(attempt, 3, 500)
    runs.request(attempt.store, attempt.run_id, "drain")
    run = runs.get_run(attempt.store, attempt.run_id)
    found = bounds()
    assert found.pending_tokens > 0
    assert found == Bounds(run.policy_version, 1, 500, 3, "drain", found.pending_tokens)
