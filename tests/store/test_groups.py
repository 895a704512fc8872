import math

import pytest
from sqlalchemy import func, select

from agrpo.errors import StatusConflict
from agrpo.store import groups, processes, runs, samples, schema
from tests.worlds.small_groups import PROMPT, generate, group, scored, start_worker, turn


def indices(claims):
    return [claim.prompt_index for claim in claims]


def statuses(store, run_id="small"):
    return {row.prompt_index: (row.status, row.drop_reason) for row in groups.groups(store, run_id)}


def test_new_claims_go_up_to_the_end_of_the_data(attempt, worker):
    assert indices(groups.claim(attempt, worker, 3)) == [0, 1, 2]
    assert indices(groups.claim(attempt, worker, 3, stop_index=5)) == [3, 4]
    assert indices(groups.claim(attempt, worker, 3, stop_index=5)) == []


def test_claims_of_a_dead_process_come_first(attempt, worker):
    other = start_worker(attempt, 1)
    groups.claim(attempt, worker, 3)
    groups.claim(attempt, other, 1)
    processes.ended(attempt, worker, -9, "killed")
    assert indices(groups.claim(attempt, other, 2)) == [0, 1]
    assert indices(groups.claim(attempt, other, 2)) == [2, 4]


def test_a_committed_group_is_ready_and_its_samples_pending(store, attempt, worker):
    (claim,) = generate(attempt, worker, 1, version=7)
    (row,) = groups.groups(store, "small")
    assert (row.status, row.version, row.ready_order, row.claimed_by) == ("ready", 7, 1, None)
    assert [sample.group_id for sample in samples.pending(store, "small")] == [claim.group_id] * 2


def test_committing_twice_is_a_conflict_and_changes_nothing(store, attempt, worker):
    (claim,) = generate(attempt, worker, 1)
    with pytest.raises(StatusConflict, match="no longer claimed"):
        groups.commit(attempt, group(claim))
    assert len(samples.pending(store, "small")) == 2


def test_a_dropped_group_keeps_its_rollouts_for_the_metrics(store, attempt, worker):
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, reason="no_signal"))
    assert statuses(store) == {0: ("dropped", "no_signal")}
    assert samples.pending(store, "small") == []
    assert runs.summary(store, "small").samples == {"dropped": 2}
    assert len(groups.scored_since(store, "small", 0)[0].rollouts) == 2


def test_a_group_without_samples_is_dropped(store, attempt, worker):
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, scored([turn(PROMPT, [])])))
    assert statuses(store) == {0: ("dropped", "nothing_trained")}


def test_a_prompt_is_skipped_once(store, attempt, worker):
    first, _ = groups.claim(attempt, worker, 2)
    groups.skip(attempt, first.group_id, "too_long")
    assert statuses(store) == {0: ("dropped", "too_long"), 1: ("claimed", None)}
    with pytest.raises(StatusConflict):
        groups.skip(attempt, first.group_id, "too_long")


def test_groups_can_be_listed_by_status(store, attempt, worker):
    generate(attempt, worker, 2)
    groups.claim(attempt, worker, 1)
    assert [row.prompt_index for row in groups.groups(store, "small", "ready")] == [0, 1]
    assert [row.prompt_index for row in groups.groups(store, "small", "claimed")] == [2]


def test_scored_groups_in_the_order_in_which_they_were_finished(store, attempt, worker):
    first, second = groups.claim(attempt, worker, 2)
    groups.commit(attempt, group(second, version=1))
    groups.commit(attempt, group(first, version=2))
    newest, last = groups.scored_since(store, "small", 0)
    assert [(one.group_id, one.ready_order) for one in (newest, last)] == [(second.group_id, 1), (first.group_id, 2)]
    assert groups.scored_since(store, "small", 1)[0].group_id == first.group_id
    assert newest.stats["duration_s"] == 0.25
    assert math.isnan(newest.stats["frequency"])
    better, worse = newest.rollouts
    assert (better.reward, better.rewards, better.num_generated, better.terminated) == (1.0, {"exact": 1.0}, 2, True)
    assert (worse.reward, worse.advantage) == (0.0, -1.0)


def test_an_unscored_rollout_has_reward_nan(store, attempt, worker):
    (claim,) = groups.claim(attempt, worker, 1)
    groups.commit(attempt, group(claim, scored([turn(PROMPT, [4])], reward=float("nan"))))
    assert math.isnan(groups.scored_since(store, "small", 0)[0].rollouts[0].reward)


def test_a_conversation_is_stored_once(store, attempt, worker):
    """Each turn stores only what it adds: the prompt once a group, an answer never again as the next turn's prompt."""
    (claim,) = groups.claim(attempt, worker, 1)
    answer = list(range(100, 200))
    first = turn(PROMPT, answer)
    second = turn([*PROMPT, *answer, 7, 8], [9])
    groups.commit(attempt, group(claim, scored([first, second]), scored([turn(PROMPT, [4])])))
    stored = schema.turns.c
    with store.read() as connection:
        query = select(stored.member, stored.num_shared, func.length(stored.prompt_suffix))
        rows = connection.execute(query.order_by(stored.member, stored.turn)).all()
    assert [tuple(row) for row in rows] == [(0, 3, 1), (0, 103, 1 + 2 * 4), (1, 3, 1)]


def test_runs_do_not_see_each_other(store, attempt, worker):
    from tests.worlds.small_groups import start_run

    other = start_run(store, "other")
    generate(attempt, worker, 2)
    assert indices(groups.claim(other, start_worker(other), 1)) == [0]
    assert groups.scored_since(store, "other", 0) == []
    with pytest.raises(StatusConflict):
        groups.skip(other, groups.groups(store, "small")[0].id, "filtered")
