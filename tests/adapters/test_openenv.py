"""Sessions of an OpenEnv server, played by one that keeps its protocol."""

import asyncio
import contextlib
import functools
import http
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from agrpo.adapters.openenv import OpenEnv
from agrpo.environments.pool import EnvironmentPool, TimeLimits
from agrpo.errors import BadInput
from agrpo.rollout.threads import Threads
from agrpo.tools.tally import ToolTally
from tests.adapters.test_adapters import episode
from tests.worlds.processes import eventually


class EchoServer:
    """Echoes messages for a reward of 0.5, an episode ends with the third step; `max_sessions` at a time.

    Does not take the message "bad", breaks at "bug", ends the session at "away", does not answer to "hang".
    """

    def __init__(self, max_sessions: int = 1) -> None:
        self.max_sessions = max_sessions
        self.sessions: list[ServerConnection] = []
        self.refused: list[ServerConnection] = []
        self.resets: list[dict[str, Any]] = []
        self.is_silent = threading.Event()
        self.status = 0
        self._server: Server = serve(self._session, "127.0.0.1", 0, process_request=self._refuse)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def close(self) -> None:
        self._server.shutdown()

    def _refuse(self, connection: ServerConnection, request: Any) -> Any:
        status = self.status or (0 if request.path == "/ws" else 404)
        return connection.respond(http.HTTPStatus(status), "no") if status else None

    def _session(self, connection: ServerConnection) -> None:
        if len(self.sessions) >= self.max_sessions:
            self.refused.append(connection)
            _send(connection, "error", code="CAPACITY_REACHED", message="Server at capacity")
            with contextlib.suppress(ConnectionClosed):
                while json.loads(connection.recv())["type"] != "close":
                    pass
            return self.refused.remove(connection)
        self.sessions.append(connection)
        try:
            self._answer(connection)
        except ConnectionClosed:
            pass
        finally:
            time.sleep(0.2)  # giving up what an environment holds takes a while
            self.sessions.remove(connection)

    def _answer(self, connection: ServerConnection) -> None:
        steps = 0
        while (message := json.loads(connection.recv()))["type"] != "close":
            said = message["data"].get("message", "ready")
            if message["type"] == "reset":
                self.resets.append(message["data"])
                steps = -1
            if said == "away":
                return
            if said == "hang":
                self.is_silent.set()
                continue
            if said in ("bad", "bug"):
                code = "VALIDATION_ERROR" if said == "bad" else "EXECUTION_ERROR"
                _send(connection, "error", code=code, message=f"no {said}")
                continue
            steps += 1
            reward = 0.5 if steps else None
            _send(connection, "observation", observation={"echo": said}, reward=reward, done=steps == 3)


def _send(connection: ServerConnection, kind: str, **data: Any) -> None:
    connection.send(json.dumps({"type": kind, "data": data}))


@pytest.fixture
def start() -> Iterator[Callable[..., EchoServer]]:
    servers: list[EchoServer] = []

    def one(max_sessions: int = 1) -> EchoServer:
        servers.append(EchoServer(max_sessions))
        return servers[-1]

    yield one
    for server in servers:
        server.close()


def test_an_episode_is_a_session_that_knows_its_steps(start: Callable[..., EchoServer]) -> None:
    server = start()
    prompt, seen, reward = episode(functools.partial(OpenEnv, server.url, task="Talk."), "a", "bad", "b", "c", "d")
    assert prompt == 'Talk.\n{"echo": "ready"}' and server.resets == [{"seed": 0}]
    assert seen == [
        '{"echo": "a"}',
        "Error: ValueError: step: no bad",
        '{"echo": "b"}',
        '{"echo": "c"}\nThe episode is over.',
        "The episode is over.",
    ]
    assert reward == 1.5 and server.sessions == []


def test_a_server_that_is_away_is_an_outage_and_one_without_sessions_a_bug(start: Callable[..., EchoServer]) -> None:
    server = start()
    with pytest.raises(ConnectionError, match="the session is over"):
        episode(functools.partial(OpenEnv, server.url), "a", "away")
    with pytest.raises(ConnectionError, match="is away"):
        episode(functools.partial(OpenEnv, "http://127.0.0.1:9"))
    server.status = 503
    with pytest.raises(ConnectionError, match=r"is away: .*503"):
        episode(functools.partial(OpenEnv, server.url))
    server.status = 403
    with pytest.raises(BadInput, match=r"/ws answered 403 .* openenv-core 0\.2 or later"):
        episode(functools.partial(OpenEnv, server.url))


def test_rollouts_at_the_same_time_have_a_session_each(start: Callable[..., EchoServer]) -> None:
    """Also where an instance is given up and another one takes its session."""
    servers = [start(2), start(1)]
    pool_of = functools.partial(EnvironmentPool, functools.partial(OpenEnv, [server.url for server in servers]))

    async def rollout(pool: EnvironmentPool, num_acts: int, together: asyncio.Barrier) -> float:
        async with pool.visit({}, [], ToolTally()) as visit:
            await together.wait()
            for _ in range(num_acts):
                await asyncio.to_thread(visit.environment.tools[0], action="a")
            await together.wait()
        assert visit.reward is not None
        return float(visit.reward[1])

    async def run() -> None:
        pool, together = pool_of(Threads(""), TimeLimits(5.0, 60.0, 5.0), 4), asyncio.Barrier(3)
        for _ in range(2):
            assert await asyncio.gather(*(rollout(pool, n, together) for n in range(3))) == [0.0, 0.5, 1.0]
            with pytest.raises(KeyError):
                async with pool.visit({}, [], ToolTally()):
                    raise KeyError("a bug in the loop")
        visits = [pool.visit({}, [], ToolTally()) for _ in range(3)]
        for visit in visits:
            await visit.__aenter__()
        with pytest.raises(
            ConnectionError, match=r"none of 2 .*Server at capacity.*; start more or raise their max_conc"
        ):
            await rollout(pool, 0, together)
        for visit in visits:
            await visit.__aexit__(None, None, None)
        await pool.close()

    asyncio.run(run())
    assert [server.sessions for server in servers] == [[], []]


def test_a_session_that_the_server_ended_between_rollouts_is_followed_by_another(
    start: Callable[..., EchoServer],
) -> None:
    server = start()
    with OpenEnv(server.url) as environment:
        environment.reset(seed=1)
        server.sessions[0].close()
        eventually(lambda: server.sessions == [])
        environment.reset(seed=2, prompt=[])
        assert environment.act("a") == '{"echo": "a"}'
    assert server.resets == [{"seed": 1}, {"seed": 2}]


def test_what_an_environment_refuses_to_begin_with_is_a_bug(start: Callable[..., EchoServer]) -> None:
    with OpenEnv(start().url) as environment, pytest.raises(ValueError, match="reset: no bug"):
        environment.reset(message="bug")


def test_a_session_is_given_back_while_a_cancelled_call_still_listens(start: Callable[..., EchoServer]) -> None:
    server = start()
    with OpenEnv(server.url) as environment:
        environment.reset(seed=1)
        with ThreadPoolExecutor() as threads:
            call = threads.submit(environment.act, "hang")
            assert server.is_silent.wait(10.0)
            environment.__exit__()
            with pytest.raises(ConnectionError, match="the session is over"):
                call.result(10.0)
    eventually(lambda: server.sessions == [])


def test_no_session_stays_open_where_another_server_is_asked(start: Callable[..., EchoServer]) -> None:
    servers = [start(0), start(0)]
    with OpenEnv([server.url for server in servers]) as environment:
        with pytest.raises(ConnectionError, match="none of 2"):
            environment.reset(seed=1)
        eventually(lambda: sum(len(server.refused) for server in servers) <= 1, 5.0)
    eventually(lambda: not any(server.refused for server in servers))
