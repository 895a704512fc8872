"""A server process of vLLM's protocol that gives out so many tokens a second, and no more.

python -m benchmarks.durable.paced_server PORT TOKENS_PER_S TOKENS_OF_AN_ANSWER
"""

import asyncio
import json
import sys
import time
from random import Random
from typing import Any

from aiohttp import web

from tests.worlds.token_server import TokenServer

NUM_TOP = 9
"""Most likely ids of each token, one more than the worker keeps."""
VOCAB = 150_000
"""Token ids are as large as those of a real vocabulary: small ones would compress better."""
NUM_ANSWERS = 64


class PacedServer(TokenServer):
    """Answers of equal length, given out one after the other."""

    def __init__(self, tokens_per_s: float, answer_tokens: int) -> None:
        super().__init__()
        self.version = "0"
        self._answer_s = answer_tokens / tokens_per_s
        # Made once: what a server computes is not what is measured here.
        self._answers = [_answer(Random(seed), answer_tokens) for seed in range(NUM_ANSWERS)]
        self._free_at = 0.0

    async def generate(self, request: web.Request) -> web.Response:
        """The next answer, when all that were asked for before have been given."""
        if not await request.json():
            return web.json_response({"error": {"message": "empty request"}}, status=400)
        self._free_at = max(self._free_at, time.monotonic()) + self._answer_s
        self.count += 1
        answer = self._answers[self.count % NUM_ANSWERS]
        await asyncio.sleep(self._free_at - time.monotonic())
        return web.Response(body=answer, content_type="application/json")


def _answer(random: Random, num_tokens: int) -> bytes:
    ids = [random.randrange(4, VOCAB) for _ in range(num_tokens)]
    choice = {
        "token_ids": ids,
        "finish_reason": "stop",
        "logprobs": {"content": [_entry(random, token) for token in ids]},
        "weight_versions": [{"version": "0", "start": 0, "end": num_tokens}],
    }
    return json.dumps({"choices": [choice]}).encode()


def _entry(random: Random, token: int) -> dict[str, Any]:
    log_probs = sorted((-random.expovariate(0.5) for _ in range(NUM_TOP)), reverse=True)
    others = [random.randrange(4, VOCAB) for _ in range(NUM_TOP - 1)]
    top = [{"token_id": i, "logprob": p} for i, p in zip([token, *others], log_probs, strict=True)]
    return {"token_id": token, "logprob": log_probs[0], "top_logprobs": top}


if __name__ == "__main__":
    app = PacedServer(float(sys.argv[2]), int(sys.argv[3])).app()
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
