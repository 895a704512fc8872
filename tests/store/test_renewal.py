"""A run that has not trained may begin anew with other settings; one that has may not."""

import pytest

from agrpo.errors import StatusConflict
from agrpo.store import Store, events, groups, policies, renewal, runs, samples, servers, steps
from tests.worlds.small_groups import generate, start_run, start_worker

NEW = {"name": "small", "servers": {"args": ["--mended"]}}


def test_nothing_of_the_old_settings_is_left_but_history(store: Store) -> None:
    attempt = start_run(store)
    policies.publish(attempt, 0, 0, "digest")
    given = servers.register(attempt, "http://mistyped:1", 0)
    servers.confirm_version(attempt, given, 0)
    own = servers.register(attempt, "http://127.0.0.1:2", 0, start_worker(attempt, 1))
    servers.confirm_version(attempt, own, 0)
    generate(attempt, start_worker(attempt), 2)
    assert renewal.is_renewable(store, runs.get_run(store, "small"))
    renewal.renew_settings(attempt, NEW, "new hash", "elsewhere/small", "servers.args: [] then, ['--mended'] now")
    run = runs.get_run(store, "small")
    assert (run.config, run.config_hash, run.run_dir) == (NEW, "new hash", "elsewhere/small")
    assert (run.policy_version, run.next_prompt_index, run.token) == (-1, 0, attempt.token)
    assert (groups.groups(store, "small"), samples.pending(store, "small")) == ([], [])
    assert policies.policies(store, "small") == []
    assert [(row.id, row.weight_version) for row in servers.servers(store, "small")] == [(own, None)]
    assert "['--mended'] now" in events.events(store, "small")[-1].message
    assert [claim.prompt_index for claim in generate(attempt, start_worker(attempt), 1)] == [0]


def test_a_run_whose_first_step_is_fixed_keeps_its_settings(store: Store) -> None:
    attempt = start_run(store)
    steps.record(attempt, 1, [], 0)
    assert not renewal.is_renewable(store, runs.get_run(store, "small"))
    with pytest.raises(StatusConflict, match="has trained meanwhile"):
        renewal.renew_settings(attempt, NEW, "new hash", "elsewhere/small", "a difference")
    assert runs.get_run(store, "small").config_hash == "hash"
