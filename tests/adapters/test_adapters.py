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
        pool, tally = EnvironmentPool(factory, Threads(""), TimeLimits(5.0, 60.0, 5.0)), ToolTally()
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
    """Echoes messages for a reward of 0.5; ends with the third step."""

    steps = 0
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Echo.steps = 0 if self.path == "/reset" else Echo.steps + 1
        message = body["action"]["message"] if self.path == "/step" else "ready"
        answer = {"observation": {"echo": message}, "reward": 0.5 * (self.path == "/step"), "done": Echo.steps == 3}
        self.send_response(Echo.status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def echo() -> Iterator[str]:
    Echo.status = 200
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_openenv_steps_over_http(echo: str) -> None:
    prompt, seen, reward = episode(functools.partial(OpenEnv, echo, task="Talk."), "a", "b", "c", "d")
    assert prompt == 'Talk.\n{"echo": "ready"}'
    assert seen == ['{"echo": "a"}', '{"echo": "b"}', '{"echo": "c"}\nThe episode is over.', "The episode is over."]
    assert reward == 1.5


def test_an_openenv_server_that_is_away_is_an_outage(echo: str) -> None:
    Echo.status = 503
    with pytest.raises(ConnectionError, match="answered 503"):
        episode(functools.partial(OpenEnv, echo))
    with pytest.raises(ConnectionError, match="is away"):
        episode(functools.partial(OpenEnv, "http://127.0.0.1:9"))
    Echo.status = 422
    with pytest.raises(ValueError, match="/reset refused"):
        episode(functools.partial(OpenEnv, echo))
