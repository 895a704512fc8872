import time

import pytest

from agrpo.launch.health import ServerWatch
from agrpo.store import Attempt, servers


class World:
    """Servers that answer, or do not; processes that live, or do not."""

    def __init__(self, attempt: Attempt, **limits: float) -> None:
        self.attempt = attempt
        self.answering: set[str] = set()
        self.live: dict[int, float] = {}
        self.ended: list[tuple[int, str]] = []
        end = lambda process_id, reason: self.ended.append((process_id, reason))  # noqa: E731
        self.watch = ServerWatch(attempt, lambda url: url in self.answering, lambda: self.live, end, **limits)

    def states(self) -> list[str]:
        self.watch.look()
        return [server.state for server in servers.servers(self.attempt.store, "r1")]


@pytest.fixture
def world(attempt: Attempt) -> World:
    return World(attempt)


def test_a_server_given_by_url_is_healthy_when_it_answers(world: World) -> None:
    servers.register(world.attempt, "http://given", 0)
    assert world.states() == ["starting"]
    world.answering.add("http://given")
    assert world.states() == ["healthy"]


def test_one_missed_answer_is_no_loss_and_three_are(world: World) -> None:
    servers.register(world.attempt, "http://given", 0)
    world.answering.add("http://given")
    assert world.states() == ["healthy"]
    world.answering.clear()
    assert [world.states() for _ in range(3)] == [["healthy"], ["healthy"], ["lost"]]
    world.answering.add("http://given")
    assert world.states() == ["healthy"]


def test_a_server_whose_process_is_gone_is_lost_whoever_answers_there(world: World) -> None:
    """Another run's server may have got the port."""
    process_id = register_server(world.attempt)
    world.answering.add("http://ours")
    assert world.states() == ["lost"]
    world.live = {process_id: time.monotonic()}
    assert world.states() == ["healthy"]


@pytest.mark.parametrize("answered_before", [False, True])
def test_a_silent_server_is_ended_after_its_time(attempt: Attempt, answered_before: bool) -> None:
    limits = {"hang_limit_s": 0.0, "start_limit_s": 3600.0} if answered_before else {"start_limit_s": 0.0}
    world = World(attempt, **limits)
    process_id = register_server(attempt)
    world.live = {process_id: time.monotonic()}
    if answered_before:
        world.answering.add("http://ours")
        world.states()
        assert world.ended == []
        world.answering.clear()
    world.states()
    assert [ended[0] for ended in world.ended] == [process_id]
    assert "has not answered for 0 s" in world.ended[0][1]


def register_server(attempt: Attempt) -> int:
    from agrpo.store import processes

    process_id = processes.register(attempt, "server", 0, 1, 1, 1, "log", url="http://ours")
    servers.register(attempt, "http://ours", 0, process_id)
    return process_id
