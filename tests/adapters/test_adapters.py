"""Each adapter with the package or protocol it is for."""

import asyncio
import functools
import http.server
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agrpo.adapters.gymnasium_text import GymnasiumText
from agrpo.adapters.openenv import OpenEnv
from agrpo.adapters.reasoning_gym import ReasoningGym, answer_in
from agrpo.environments.pool import EnvironmentPool, TimeLimits
from agrpo.errors import BadInput
from agrpo.rollout.threads import Threads
from agrpo.tools.calls import ToolCall
from agrpo.tools.tally import ToolTally
from agrpo.tools.toolbox import Toolbox

LAKE = functools.partial(
    GymnasiumText,
    "FrozenLake-v1",
    task="Walk from S to G.",
    actions=("left", "down", "right", "up"),
    options={"is_slippery": False},
)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def episode(factory: Any, *actions: str) -> tuple[str, list[str], float]:
    """First prompt, what each action showed, and the reward."""

    async def run() -> tuple[str, list[str], float]:
        pool, tally = EnvironmentPool(factory, Threads(""), TimeLimits(5.0, 60.0, 5.0), 512), ToolTally()
        async with pool.visit({"seed": 0}, [], tally) as visit:
            box = Toolbox(visit.environment.tools, Threads(""), 5.0, tally)
            seen = await box.answer([ToolCall("act", {"action": action}) for action in actions])
        assert visit.reward is not None
        return visit.messages[-1]["content"], seen, visit.reward[1]

    return asyncio.run(run())


def test_reasoning_gym_gives_rows_and_scores_them_in_another_process() -> None:
    gym = ReasoningGym("basic_arithmetic", size=3, seed=1)
    rows = gym.rows()
    assert rows[0]["prompt"][1]["content"] == "Calculate 5 - 3 - 6." and rows[0]["task"] == 0
    there: ReasoningGym = pickle.loads(pickle.dumps(gym))
    completions = [said("So <answer>1</answer> no, <answer>-4</answer>"), said("-4"), said("<answer>nonsense</answer>")]
    scores = there.score(completions=completions, task=[0, 0, 0], prompts=[])
    assert scores[0] == 1.0 and scores[1] < 0.1 and scores[2] < 0.1
    assert answer_in([]) is None


def test_gymnasium_is_played_by_names_of_actions() -> None:
    prompt, seen, reward = episode(LAKE, "down", "jump", "down", "right", "right", "down", "right", "up")
    assert prompt.startswith("Walk from S to G. Actions: left, down, right, up.\n[S]FFF")
    assert "[F]HFH" in seen[0] and "There is no action 'jump'" in seen[1]
    assert seen[-2].endswith("The episode is over.") and seen[-1] == "The episode is over." and reward == 1.0
    assert episode(LAKE, "right", "down")[2] == 0.0


class Echo(http.server.BaseHTTPRequestHandler):
    """Echoes messages for a reward of 0.5; ends with the third step. Its server holds one episode."""

    server: "EchoServer"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.steps = 0 if self.path == "/reset" else server.steps + 1
        message = body["action"]["message"] if self.path == "/step" else "ready"
        answer = {"observation": {"echo": message}, "reward": 0.5 * (self.path == "/step"), "done": server.steps == 3}
        self.send_response(server.status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None: ...


class EchoServer(http.server.ThreadingHTTPServer):
    """Has its own episode."""

    steps = 0
    status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def echoes() -> Iterator[list[EchoServer]]:
    servers = [EchoServer(("127.0.0.1", 0), Echo) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


def test_openenv_steps_over_http(echoes: list[EchoServer]) -> None:
    prompt, seen, reward = episode(functools.partial(OpenEnv, echoes[0].url, task="Talk."), "a", "b", "c", "d")
    assert prompt == 'Talk.\n{"echo": "ready"}'
    assert seen == ['{"echo": "a"}', '{"echo": "b"}', '{"echo": "c"}\nThe episode is over.', "The episode is over."]
    assert reward == 1.5


def test_an_openenv_server_that_is_away_is_an_outage(echoes: list[EchoServer]) -> None:
    echoes[0].status = 503
    with pytest.raises(ConnectionError, match="answered 503"):
        episode(functools.partial(OpenEnv, echoes[0].url))
    with pytest.raises(ConnectionError, match="is away"):
        episode(functools.partial(OpenEnv, "http://127.0.0.1:9"))
    echoes[0].status = 422
    with pytest.raises(ValueError, match="/reset refused"):
        episode(functools.partial(OpenEnv, echoes[0].url))


def test_rollouts_at_the_same_time_have_an_openenv_server_each(echoes: list[EchoServer]) -> None:
    """Also where an instance is given up and another one takes its server."""
    factory = functools.partial(OpenEnv, [server.url for server in echoes])

    async def act(pool: EnvironmentPool, actions: list[str], together: asyncio.Barrier) -> float:
        async with pool.visit({}, [], ToolTally()) as visit:
            await together.wait()
            calls = [ToolCall("act", {"action": action}) for action in actions]
            await Toolbox(visit.environment.tools, Threads(""), 5.0, ToolTally()).answer(calls)
        assert visit.reward is not None
        return float(visit.reward[1])

    async def run() -> None:
        pool, together = EnvironmentPool(factory, Threads(""), TimeLimits(5.0, 60.0, 5.0), 512), asyncio.Barrier(2)
        for _ in range(2):
            assert await asyncio.gather(act(pool, ["a"], together), act(pool, ["b", "c"], together)) == [0.5, 1.0]
            with pytest.raises(KeyError):
                async with pool.visit({}, [], ToolTally()):
                    raise KeyError("a bug in the loop")
        async with pool.visit({}, [], ToolTally()), pool.visit({}, [], ToolTally()):
            with pytest.raises(BadInput, match="no OpenEnv server is free: 2 given"):
                await act(pool, [], together)
        await pool.close()

    asyncio.run(run())
