"""The adapter with the package itself, in an interpreter that has it: `make test-verifiers`."""

import asyncio
import pickle
import sys
from pathlib import Path

import pytest

from agrpo.adapters.verifiers import VerifiersTasks
from agrpo.harness.loop import HarnessRolloutLoop
from agrpo.records import Rollout
from agrpo.rollout.loop import RolloutPlace, rollout_place
from agrpo.rollout.pool import ServerPool
from agrpo.sequences import build_sequences
from agrpo.store.servers import ServerRecord
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from tests.worlds.chat_families import QWEN25, family_tokenizer
from tests.worlds.scripted_server import Answer, ScriptedServer

TOKENIZER = family_tokenizer(QWEN25)


async def trusted(record: ServerRecord) -> None:
    """Nothing to distrust."""


def play(tasks: VerifiersTasks, position: int, words: str) -> Rollout:
    """One rollout of a task, to which the model says these words."""
    said = [*TOKENIZER.encode(words, add_special_tokens=False), 0]

    async def run(url: str) -> Rollout:
        pool = ServerPool(5.0, trusted)
        await pool.update([ServerRecord(1, url, 0, 1, "healthy", 0, {})], 0)
        config = AsyncGRPOConfig(output_dir="unused", use_cpu=True)
        loop = HarnessRolloutLoop(config, "scripted", TOKENIZER, [0], pool, agent=tasks, agent_timeout_s=120.0)
        await loop.setup()
        row = tasks.rows()[position]
        rollout_place.set(RolloutPlace("run", position, 0, row=row))
        try:
            return await loop.generate_one(row["prompt"], [])
        finally:
            await loop.close()
            await pool.close()

    with ScriptedServer(lambda prompt, params, n: Answer(said), max_model_len=4096) as server:
        return asyncio.run(run(server.url))


def test_a_taskset_is_played_by_its_own_harness_and_scored_by_its_own_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    tasks: VerifiersTasks = pickle.loads(pickle.dumps(VerifiersTasks("sums", size=3)))
    assert [row["prompt"][0]["content"] for row in tasks.rows()] == ["What is 0+1?", "What is 1+1?", "What is 2+1?"]
    for words, reward in (("It is 2.", 1.0), ("It is 7.", 0.0)):
        rollout = play(tasks, 1, words)
        assert rollout.reward == reward and len(rollout.turns) == 1
        (sample,) = build_sequences(rollout.turns)
        assert "What is 1+1?" in TOKENIZER.decode(sample.token_ids) and sample.num_trained == len(words) + 1
    assert sys.modules["sums"].Sums.num_loads == 1
