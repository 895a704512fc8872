"""What a resumed group gets again, and what it must generate."""

import asyncio
import dataclasses

import pytest

from agrpo.rollout.journal import GroupJournal, MemberJournal, open_journal
from agrpo.store import drafts, groups, leases, policies, processes, samples, servers
from agrpo.store.drafts import Draft
from agrpo.store.verify import verify
from tests.rollout.run_world import RunWorld, rows
from tests.worlds.scripted_server import Answer, ScriptedServer
from tests.worlds.small_groups import turn

FIRST, SECOND = turn([1], [2]), turn([1, 2, 3], [4])


class Kept:
    """Drafts in memory."""

    def __init__(self, *kept: Draft) -> None:
        self.kept, self.new = list(kept), []

    async def drafts(self, group_id):
        return self.kept

    async def discard(self, group_id):
        self.kept = []

    def keep(self, turn):
        self.new.append((turn.member, turn.position, turn.version, turn.before, turn.turn))


def test_the_same_questions_get_the_same_answers():
    kept = Kept()
    journal = MemberJournal(7, 0, 5, [FIRST, SECOND], kept.keep)
    assert journal.recall(FIRST.prompt_ids) == FIRST
    assert journal.recall(SECOND.prompt_ids) == SECOND
    assert journal.recall([9]) is None
    assert journal.again().recall(FIRST.prompt_ids) == FIRST
    assert kept.new == []


def test_a_hook_that_changes_its_turn_changes_none_that_is_kept():
    kept = Kept()
    journal = MemberJournal(7, 0, 5, [FIRST], kept.keep)
    recalled, new = journal.recall(FIRST.prompt_ids), dataclasses.replace(SECOND)
    journal.note(new)
    recalled.output_mask = new.output_mask = [0]
    assert journal.again().recall(FIRST.prompt_ids).output_mask is None
    assert kept.new[0][-2:] == (FIRST, SECOND)


def test_a_turn_that_comes_back_after_its_try_is_kept_by_nobody():
    """Its group may be committed by then: an agent that overran its time had a request in flight."""
    kept = Kept()
    journal = MemberJournal(7, 0, 5, [], kept.keep)
    journal.note(FIRST)
    following = journal.again()
    journal.note(SECOND)
    assert kept.new == [(0, 0, 5, None, FIRST)]
    assert following.recall(FIRST.prompt_ids) == FIRST and following.recall(SECOND.prompt_ids) is None
    following.close()
    following.note(SECOND)
    assert len(kept.new) == 1


def test_another_question_is_generated_and_costs_nothing_that_is_kept():
    kept = Kept()
    journal = MemberJournal(7, 0, 5, [FIRST, SECOND], kept.keep)
    assert journal.recall(FIRST.prompt_ids) == FIRST
    assert journal.recall([1, 2, 9]) is None
    other = turn([1, 2, 9], [6])
    journal.note(other)
    assert kept.new == [(0, 2, 5, SECOND, other)]
    assert journal.recall(other.prompt_ids) is None
    assert journal.recall(SECOND.prompt_ids) == SECOND
    journal.forget()
    assert journal.recall(FIRST.prompt_ids) is None
    journal.note(other)
    assert kept.new[1:] == [(0, 0, 5, None, other)]


def test_requests_beside_each_other_are_given_again_in_any_order():
    kept = Kept()
    like_first = turn(FIRST.prompt_ids, [8])
    journal = MemberJournal(7, 0, 5, [SECOND, FIRST, like_first], kept.keep)
    prompts = [FIRST.prompt_ids, FIRST.prompt_ids, SECOND.prompt_ids, SECOND.prompt_ids]
    assert [journal.recall(prompt) for prompt in prompts] == [FIRST, like_first, SECOND, None]
    assert journal.again().recall(FIRST.prompt_ids) == FIRST and kept.new == []


def test_a_group_began_when_its_oldest_rollout_did():
    journal = GroupJournal(7, [Draft(0, 3, [FIRST]), Draft(2, 4, [FIRST])], Kept().keep)
    assert (journal.began(5), journal.began(2)) == (3, 2)
    assert [journal.member(number, 5).version for number in range(3)] == [3, 5, 4]
    assert GroupJournal(7, [], Kept().keep).began(5) == 5


@pytest.mark.parametrize(("current", "is_kept"), [(4, True), (5, False)])
def test_turns_that_are_too_old_to_be_trained_are_forgotten(current, is_kept):
    kept = Kept(Draft(0, 0, [FIRST]), Draft(1, 2, [FIRST]))
    journal = asyncio.run(open_journal(kept, 7, current, max_staleness=4))
    assert (journal.member(1, current).recall(FIRST.prompt_ids) == FIRST) == is_kept
    assert (kept.kept != []) == is_kept


@pytest.mark.parametrize("commit_turns", [True, False])
def test_a_killed_group_is_resumed_with_the_siblings_that_were_finished(tmp_path, commit_turns):
    """The second of two rollouts never comes back before the kill."""

    def script(prompt, params, number):
        ids = {1: [11, 1], 3: [13, 5, 1]}.get(number, [14, 1])  # of two lengths, so that the reward differs
        return Answer(token_ids=ids, after_s=60.0 if number == 2 else 0.0)

    with ScriptedServer(script) as server:
        world = RunWorld(tmp_path, server, {"max_concurrent_rollouts": 2})
        spec = dataclasses.replace(world.spec(rows(1)), commit_turns=commit_turns)

        def one_is_back():
            pending = groups.groups(world.store, "run", "claimed")
            kept = bool(pending) and len(drafts.of_group(world.store, pending[0].id)) == 1
            return len(server.requests) == 2 and (kept or not commit_turns)

        world.run(spec, one_is_back)
        leases.release(world.attempt, "stopped")
        world.attempt = leases.acquire(world.store, "run", leases.this_process())
        world.process_id = processes.register(world.attempt, "worker", 0, 1, 1, 0, "log")
        policies.publish(world.attempt, 1, 0, "newer")
        servers.confirm_version(world.attempt, world.server_id, 1)
        server.weight_version = "1"
        spec = dataclasses.replace(spec, token=world.attempt.token)
        world.run(spec, lambda: bool(groups.groups(world.store, "run", "ready")))
        assert len(server.requests) == (3 if commit_turns else 4)
        (group,) = groups.groups(world.store, "run", "ready")
        assert group.version == (0 if commit_turns else 1)
        answers = [s.token_ids[s.trained].tolist() for s in samples.load(world.store, [1, 2])]
        assert answers == ([[11, 1], [13, 5, 1]] if commit_turns else [[13, 5, 1], [14, 1]])
        assert verify(world.store, "run").problems == []
