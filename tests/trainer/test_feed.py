"""What the next step is made of, on ledgers one can check by eye."""

import time

import pytest

from agrpo.errors import BadInput
from agrpo.metrics import Window
from agrpo.store import groups, policies, processes, runs, samples, steps
from agrpo.store.steps import StepRow
from agrpo.trainer.feed import Feed, Pace, StepOrder, arrange
from agrpo.trainer.stopping import StopSwitch
from agrpo.trees import Limits
from tests.trainer import ledger
from tests.worlds import small_groups

NOT_YET = None


@pytest.fixture
def attempt(tmp_path):
    store = ledger.open_store(tmp_path)
    yield small_groups.start_run(store)
    store.close()


@pytest.fixture
def worker(attempt):
    """A worker that has more to give."""
    number = small_groups.start_worker(attempt)
    ledger.say(attempt, number, in_flight=1, admission_open=True, data_ended=False)
    return number


def feed(attempt, token_budget=100, groups_per_step=2, max_staleness=1, while_waiting=lambda: None):
    window = Window()
    pace = Pace(Limits(1, 1, token_budget, groups_per_step), max_staleness)
    return Feed(attempt, pace, StopSwitch(), window, while_waiting), window


def ids(order):
    assert isinstance(order, StepOrder)
    return [[[sample.sample_id for sample in row] for row in micro_batch] for micro_batch in order.micro_batches]


def pending_tokens(attempt):
    return sum(sample.num_tokens for sample in samples.pending(attempt.store, attempt.run_id))


def publish(attempt, *versions):
    for version in versions:
        policies.publish(attempt, version, version, "digest")


def commit(attempt, worker, *rollouts, version=0):
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, small_groups.group(claim, *rollouts, version=version))


def test_a_step_is_recorded_before_it_is_given_out(attempt, worker):
    small_groups.generate(attempt, worker, 3)
    taken, _ = feed(attempt)
    assert ids(taken.next_order(1, 0)) == [[[1, 2, 3, 4]]]
    assert steps.rows(attempt.store, attempt.run_id, 1) == [StepRow(0, 0, i, i + 1) for i in range(4)]
    assert [sample.sample_id for sample in samples.pending(attempt.store, attempt.run_id)] == [5, 6]


def test_it_waits_for_its_groups_and_says_so(attempt, worker):
    small_groups.generate(attempt, worker, 1)
    looks = []
    waiting, _ = feed(attempt, while_waiting=lambda: looks.append(1))
    assert waiting.next_order(1, 0.3) is NOT_YET
    (beat,) = processes.heartbeats(attempt.store, attempt.run_id)
    assert (beat.kind, beat.loop, beat.detail) == ("trainer", "train", "waiting for samples: 2 pending, workers: flows")
    assert len(looks) > 1
    small_groups.generate(attempt, worker, 1)
    assert ids(waiting.next_order(1, 0)) == [[[1, 2, 3, 4]]]


def test_a_stall_closes_a_smaller_step(attempt, worker):
    """Nothing in flight and admission closed under the present allowance: waiting would be for ever."""
    small_groups.generate(attempt, worker, 1)
    runs.set_allowance(attempt, 3, pending_tokens(attempt))
    ledger.say(attempt, worker, data_ended=False, allowance_step_seen=2)
    stalled, _ = feed(attempt)
    assert stalled.next_order(1, 0) is NOT_YET  # the worker has not seen the newest allowance
    ledger.say(attempt, worker, data_ended=False, allowance_step_seen=3)
    assert ids(stalled.next_order(1, 0)) == [[[1, 2]]]
    assert stalled.next_order(2, 0) is NOT_YET


def test_dropping_stale_samples_makes_room_so_the_step_waits_for_its_groups(attempt, worker):
    """The worker said "closed" before the drop; at its word steps would shrink, and the allowance with them."""
    small_groups.generate(attempt, worker, 1, version=0)
    small_groups.generate(attempt, worker, 1, version=2)
    publish(attempt, 0, 1, 2)
    runs.set_allowance(attempt, 3, pending_tokens(attempt))
    ledger.say(attempt, worker, data_ended=False, allowance_step_seen=3)
    waiting, _ = feed(attempt, max_staleness=1)
    assert waiting.next_order(1, 0) is NOT_YET
    small_groups.generate(attempt, worker, 1, version=2)
    assert ids(waiting.next_order(1, 0)) == [[[3, 4, 5, 6]]]


def test_the_end_of_the_data(attempt, worker):
    small_groups.generate(attempt, worker, 1)
    ending, _ = feed(attempt)
    ledger.say(attempt, worker, in_flight=1)
    assert ending.next_order(1, 0) is NOT_YET  # a group is still being generated
    ledger.say(attempt, worker)
    assert ids(ending.next_order(1, 0)) == [[[1, 2]]]
    assert ending.next_order(2, 0) == "data ended"


def test_the_data_has_not_ended_while_a_dead_workers_prompt_is_to_be_taken_over(attempt, worker):
    """The dead worker's word is gone with it, and the other one has not looked yet (fault 3)."""
    dead = small_groups.start_worker(attempt, index=1)
    groups.claim(attempt, dead, 1)
    processes.ended(attempt, dead, -9, "killed")
    ledger.say(attempt, worker)
    waiting, _ = feed(attempt)
    assert waiting.next_order(1, 0) is NOT_YET
    small_groups.generate(attempt, worker, 1)
    ledger.say(attempt, worker)
    assert ids(waiting.next_order(1, 0)) == [[[1, 2]]]
    assert waiting.next_order(2, 0) == "data ended"


def test_a_wait_is_counted_whole_however_often_patience_ends(attempt, worker):
    waiting, window = feed(attempt)
    begun = time.monotonic()
    assert waiting.next_order(1, 0.2) is waiting.next_order(1, 0.2) is NOT_YET
    small_groups.generate(attempt, worker, 2)
    waiting.next_order(1, 0)
    assert 0.4 <= window.values()["perf/rollout_wait_s"] <= time.monotonic() - begun


def test_without_a_worker_it_waits(attempt):
    waiting, _ = feed(attempt)
    assert waiting.next_order(1, 0) is NOT_YET


def test_stale_samples_are_dropped_and_the_step_is_filled_from_others(attempt, worker):
    small_groups.generate(attempt, worker, 1, version=0)
    small_groups.generate(attempt, worker, 2, version=1)
    publish(attempt, 0, 1, 2)
    fresh, window = feed(attempt, max_staleness=1)
    assert ids(fresh.next_order(1, 0)) == [[[3, 4, 5, 6]]]
    assert window.values()["sample/dropped_stale_count"] == 2
    assert runs.summary(attempt.store, attempt.run_id).samples == {"trained": 4, "dropped": 2}
    assert window.values()["sample/staleness_max"] == 1


def test_a_rollout_with_a_sample_that_is_too_long_goes_as_a_whole(attempt, worker):
    long = small_groups.scored([small_groups.turn([1, 2, 3], [4]), small_groups.turn([9] * 20, [5])])
    commit(attempt, worker, small_groups.two_samples(), long)
    commit(attempt, worker)
    short, window = feed(attempt, token_budget=12)
    assert ids(short.next_order(1, 0)) == [[[1, 2, 5, 6]]]
    assert window.values()["batch/dropped_oversize_count"] == 1
    assert runs.summary(attempt.store, attempt.run_id).samples == {"trained": 4, "dropped": 2}


def test_a_begun_rollout_is_finished_even_when_it_has_become_stale(attempt, worker):
    commit(attempt, worker, small_groups.two_samples())
    steps.record(attempt, 1, [StepRow(0, 0, 0, 1)], 0)
    publish(attempt, 0, 1, 2, 3)
    late, _ = feed(attempt, groups_per_step=1)
    assert ids(late.next_order(2, 0)) == [[[2]]]


def test_a_budget_below_half_a_rollout_is_refused(attempt, worker):
    commit(attempt, worker, small_groups.two_samples())
    steps.record(attempt, 1, [StepRow(0, 0, 0, 1)], 0)
    with pytest.raises(BadInput, match="token_budget=3"):
        feed(attempt, token_budget=3)[0].next_order(2, 0)


def test_recorded_steps_come_first_and_exactly_as_they_were(attempt, worker):
    small_groups.generate(attempt, worker, 3)
    rows = [StepRow(0, 0, 0, 4), StepRow(0, 0, 1, 2), StepRow(1, 0, 0, 6)]
    steps.record(attempt, 1, rows, 0)
    ledger.say(attempt, worker)
    again, _ = feed(attempt)
    order = again.next_order(1, 0)
    assert ids(order) == [[[4, 2]], [[6]]]
    assert order.is_replay and (order.num_trained, order.num_raw_tokens) == (3, 12)
    assert order.num_tokens == 8  # samples 4 and 2 are equal
    fresh = again.next_order(2, 0)
    assert ids(fresh) == [[[1, 3]]] and not fresh.is_replay
    assert again.last_recorded == 1


def test_a_stop_comes_from_the_switch_or_from_the_store(attempt, worker):
    runs.request(attempt.store, attempt.run_id, "stop")
    stopping, _ = feed(attempt)
    assert stopping.next_order(1, 10) == "stopped"


def test_recorded_rows_keep_their_places_or_are_dealt_to_fewer_ranks():
    rows = [StepRow(0, 0, 0, 1), StepRow(0, 1, 0, 2), StepRow(0, 1, 1, 3), StepRow(1, 1, 0, 4)]
    assert arrange(rows, 2) == (((1,), (2, 3)), ((), (4,)))
    assert arrange(rows, 3) == (((1,), (2, 3), ()), ((), (4,), ()))
    assert arrange(rows, 1) == (((1,),), ((2, 3),), ((4,),))
    assert arrange([], 2) == ()
