"""Each adapter with the package or protocol it is for."""

import asyncio
import functools
import pickle
from typing import Any

from agrpo.adapters.gymnasium_text import GymnasiumText
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
        pool, tally = EnvironmentPool(factory, Threads(""), TimeLimits(5.0, 60.0, 5.0), 512), ToolTally()
        async with pool.visit({"seed": 0}, [], tally) as visit:
            box = Toolbox(visit.environment.tools, Threads(""), 5.0, tally)
            seen = await box.answer([ToolCall("act", {"action": action}) for action in actions])
        assert visit.reward is not None
        await pool.close()
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
