"""Versions: published after every step, confirmed by every server, sent again to one that lost them."""

import time

import pytest
from torch import nn

from agrpo.errors import LeaseLost, ProbeFailed, ServerOutage, WeightSyncError
from agrpo.metrics import Window
from agrpo.store import events, leases, policies, servers, steps
from agrpo.trainer import publishing
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.publishing import ServerSync
from agrpo.trainer.stopping import StopSwitch
from agrpo.weights.publisher import SyncReport
from tests.trainer import ledger
from tests.worlds import small_groups


class Publisher:
    """Confirms at once, except where the next answer says something else."""

    def __init__(self):
        self.sent = []
        self.failures = []

    def publish(self, named_tensors, version, urls, backend):
        assert backend == "agrpo_file"
        assert [name for name, _ in named_tensors] == ["bias", "weight"]
        self.sent.append((version, tuple(urls)))
        failed = self.failures.pop(0) if self.failures else {}
        times = {"barrier": 0.1, "pause": 0.2, "transfer": 0.3}
        return SyncReport(times, [url for url in urls if url not in failed], failed)


class Probe:
    def __init__(self):
        self.checked = []
        self.error = None
        self.outages = 0

    def read(self):
        raise AssertionError("only for sharded models")

    def check(self, url):
        self.checked.append(url)
        if self.outages:
            self.outages -= 1
            raise ServerOutage("gone")
        if self.error is not None:
            raise self.error


class World:
    def __init__(self, attempt, tmp_path, **settings):
        self.attempt, self.publisher, self.probe, self.window = attempt, Publisher(), Probe(), Window()
        self.stop, self.greeted = StopSwitch(), []
        args = ledger.config(tmp_path, vllm_server_timeout=20.0, **settings)
        weights = PolicyWeights(nn.Linear(2, 2))
        self.sync = ServerSync(attempt, weights, self.publisher, self.probe, self.greet, args, self.stop, self.window)
        self.sync.prepare()

    def greet(self, url):
        self.greeted.append(url)
        return "agrpo_file"

    def server(self, url, index=0, state="healthy"):
        number = servers.register(self.attempt, url, index)
        servers.set_state(self.attempt, number, state)
        return number

    def versions(self):
        return [
            (row.version, row.step, row.digest) for row in policies.policies(self.attempt.store, self.attempt.run_id)
        ]

    def served(self):
        return [row.weight_version for row in servers.servers(self.attempt.store, self.attempt.run_id)]

    def kinds(self):
        return [event.kind for event in events.events(self.attempt.store, self.attempt.run_id)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(publishing, "RETRY_S", 0.01)


@pytest.fixture
def attempt(tmp_path):
    store = ledger.open_store(tmp_path)
    yield small_groups.start_run(store)
    store.close()


@pytest.fixture
def world(attempt, tmp_path):
    return World(attempt, tmp_path)


def outage(phase="update"):
    error = WeightSyncError(phase, "no answer")
    error.__cause__ = ServerOutage("no answer")
    return error


def test_the_first_sync_publishes_version_0_and_probes_it(world):
    world.server("http://a")
    world.sync.settle(0, "start")
    assert world.versions() == [(0, 0, "start")]
    assert (world.served(), world.probe.checked, world.greeted) == ([0], ["http://a"], ["http://a"])
    assert world.window.values()["perf/weight_sync_s"] == pytest.approx(0.6)


def test_every_weight_sync_steps_a_new_version(attempt, tmp_path):
    world = World(attempt, tmp_path, weight_sync_steps=2)
    world.server("http://a")
    world.sync.settle(0, "d0")
    for step in (1, 2, 3, 4):
        world.sync.after_step(step, f"d{step}")
    assert world.versions() == [(0, 0, "d0"), (1, 2, "d2"), (2, 4, "d4")]
    assert len(world.probe.checked) == 1


def test_a_failed_server_is_sent_everything_again_and_the_version_waits_for_it(world):
    """Fault 7."""
    world.server("http://a")
    world.server("http://b", 1)
    world.publisher.failures = [{"http://b": outage()}, {"http://b": outage("resume")}]
    world.sync.settle(0, "start")
    assert world.publisher.sent == [(0, ("http://a", "http://b")), (0, ("http://b",)), (0, ("http://b",))]
    assert world.served() == [0, 0]
    assert world.kinds().count("weight_sync_failed") == 2


def test_a_refusal_is_not_repeated_for_ever(world):
    world.server("http://a")
    world.publisher.failures = [{"http://a": WeightSyncError("update", "unknown name 'x'")}] * 5
    with pytest.raises(WeightSyncError, match="unknown name"):
        world.sync.settle(0, "start")
    assert len(world.publisher.sent) == publishing.REFUSALS_ALLOWED
    assert world.versions() == []


def test_an_outage_that_lasts_is_an_outage(attempt, tmp_path):
    world = World(attempt, tmp_path)
    world.sync._args.vllm_server_timeout = 0.2
    world.server("http://a", state="lost")
    with pytest.raises(ServerOutage, match="no server is healthy"):
        world.sync.settle(0, "start")
    assert world.versions() == []


def test_a_stop_while_waiting_for_a_server_publishes_nothing(world):
    world.stop.request()
    world.sync.settle(0, "start")
    assert world.versions() == []


def test_a_restarted_server_gets_the_same_version_again(world):
    world.server("http://a")
    world.server("http://b", 1)
    world.sync.settle(0, "d0")
    world.server("http://b", 1)  # registered again: nobody knows what it serves
    world.sync.keep_current()
    world.sync.keep_current()
    assert world.publisher.sent[1:] == [(0, ("http://b",))]
    assert world.versions() == [(0, 0, "d0")]


def test_when_the_weights_have_moved_on_a_restarted_server_brings_a_new_version(attempt, tmp_path):
    world = World(attempt, tmp_path, weight_sync_steps=4)
    world.server("http://a")
    world.sync.settle(0, "d0")
    world.sync.after_step(1, "d1")
    world.server("http://a")
    world.sync.keep_current()
    assert world.versions() == [(0, 0, "d0"), (1, 1, "d1")]


def test_a_killed_attempts_confirmation_counts_for_nothing(world):
    number = world.server("http://a")
    world.sync.settle(0, "d0")
    servers.confirm_version(world.attempt, number, 1)  # it died before the version became current
    world.sync.after_step(1, "d1")
    assert world.publisher.sent == [(0, ("http://a",)), (1, ("http://a",))]


def test_after_a_replay_to_the_same_weights_nothing_is_sent(world):
    world.server("http://a")
    world.sync.settle(0, "d0")
    world.sync.after_step(1, "d1")
    world.sync.settle(1, "d1")
    assert len(world.publisher.sent) == 2


def test_after_a_replay_the_unpublished_step_is_published(world):
    world.server("http://a")
    world.sync.settle(0, "d0")
    world.sync.settle(1, "d1")
    assert world.versions()[-1] == (1, 1, "d1")
    assert "replay_diverged" not in world.kinds()


def test_a_diverged_replay_is_a_new_version_and_an_event(world):
    world.server("http://a")
    world.sync.settle(0, "d0")
    world.sync.after_step(1, "d1")
    world.sync.settle(1, "other")
    assert world.versions()[-1] == (2, 1, "other")
    assert "replay_diverged" in world.kinds()


def test_a_replay_that_had_diverged_before_it_was_killed_is_a_new_version_though_none_is_due(attempt, tmp_path):
    world = World(attempt, tmp_path, weight_sync_steps=2)
    world.server("http://a")
    world.sync.settle(0, "d0")
    for step in (1, 2, 3):
        steps.record(attempt, step, [], 0)
        steps.finish(attempt, step, f"d{step}", {})
        world.sync.after_step(step, f"d{step}")
    steps.finish(attempt, 2, "other 2", {})  # the replay was killed here; the next one finds these weights again
    assert steps.finish(attempt, 2, "other 2", {}) == "equal"
    world.sync.settle(3, "other 3")
    assert world.versions() == [(0, 0, "d0"), (1, 2, "d2"), (2, 3, "other 3")]
    assert "replay_diverged" in world.kinds()


def test_a_failed_probe_ends_the_run_before_the_version_counts(world):
    world.server("http://a")
    world.probe.error = ProbeFailed("0.1 against 0.2")
    with pytest.raises(ProbeFailed):
        world.sync.settle(0, "d0")
    assert (world.versions(), world.served()) == ([], [None])


def test_a_server_that_dies_between_update_and_probe_does_not_end_the_run(world):
    world.server("http://a")
    world.probe.outages = 1
    world.sync.settle(0, "d0")
    assert "probe_skipped" in world.kinds()
    assert [version for version, _ in world.publisher.sent] == [0, 0]  # what it came back with, nobody knows
    assert world.served() == [0]


def test_a_server_that_took_half_an_update_is_not_used_until_it_has_all(world):
    world.server("http://a")
    world.sync.settle(0, "d0")
    world.publisher.failures = [{"http://a": WeightSyncError("update", "no")}] * publishing.REFUSALS_ALLOWED
    with pytest.raises(WeightSyncError):
        world.sync.after_step(1, "d1")
    assert world.served() == [None]


def test_a_run_without_any_server_says_so_in_the_end(attempt, tmp_path):
    world = World(attempt, tmp_path)
    number = world.server("http://a")
    world.sync.settle(0, "d0")
    world.sync._args.vllm_server_timeout = 0.05
    servers.set_state(attempt, number, "lost")
    deadline = time.monotonic() + 10
    with pytest.raises(ServerOutage, match="no vLLM server has been healthy"):
        while time.monotonic() < deadline:
            world.sync.keep_current()


def test_an_attempt_that_was_replaced_sends_nothing(world):
    world.server("http://a")
    world.sync.settle(0, "d0")
    leases.acquire(world.attempt.store, world.attempt.run_id, small_groups.DEAD)
    with pytest.raises(LeaseLost):
        world.sync.after_step(1, "d1")
    assert [version for version, _ in world.publisher.sent] == [0]
