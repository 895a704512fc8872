"""A server process that speaks vLLM's protocol and answers with tokens made from the question: `python -m ... PORT`.

It starts in half a second and takes weight updates without reading them, so that runs of many processes stay cheap.
"""

import hashlib
import sys
from typing import Any

from aiohttp import web

END_TOKEN = 1
VOCAB = 90


class TokenServer:
    """The state of one process: which weights it claims to serve."""

    def __init__(self) -> None:
        self.version = "default"
        self.count = 0

    def app(self) -> web.Application:
        """Every path that a run asks for."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/{path:.*}", self.tell)
        app.router.add_post("/inference/v1/generate", self.generate)
        app.router.add_post("/v1/completions", self.score)
        app.router.add_post("/{path:.*}", self.obey)
        return app

    async def tell(self, request: web.Request) -> web.Response:
        """What it is and has."""
        config = {
            "model_config": {"dtype": "torch.float32", "max_logprobs": 20, "logprobs_mode": "processed_logprobs"},
            "weight_transfer_config": {"backend": "agrpo_file"},
            "device_config": {"device": "cpu"},
        }
        if request.path == "/metrics":
            return web.Response(text="vllm:kv_cache_usage_perc 0.1\n")
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "tokens", "max_model_len": 128}]},
            "/server_info": {"vllm_config": config},
            "/weight_info": {"weight_version": self.version},
        }
        return web.json_response(answers.get(request.path, {}))

    async def obey(self, request: web.Request) -> web.Response:
        """Weight updates, in the order in which vLLM wants them."""
        body = await request.json() if request.can_read_body else {}
        if request.path == "/finish_weight_update":
            self.version = body["weight_version"]
        if request.path == "/update_weight_version":
            self.version = body["new_version"]
        return web.json_response({})

    async def generate(self, request: web.Request) -> web.Response:
        """Two to nine tokens that depend on the prompt and on how many were asked before."""
        body = await request.json()
        if not body:
            return web.json_response({"error": {"message": "empty request"}}, status=400)
        self.count += 1
        noise = hashlib.sha256(f"{self.count} {self.version} {body['token_ids']}".encode()).digest()
        ids = [4 + byte % (VOCAB - 4) for byte in noise[1 : 2 + noise[0] % 8]] + [END_TOKEN]
        choice = {
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": {"content": [_entry(token) for token in ids]},
            "weight_versions": [{"version": self.version, "start": 0, "end": len(ids)}],
        }
        return web.json_response({"choices": [choice]})

    async def score(self, request: web.Request) -> web.Response:
        """Log-probabilities of a prompt, which are no model's."""
        tokens = (await request.json())["prompt"]
        entries = [None, *({str(token): {"logprob": -4.0}} for token in tokens[1:])]
        return web.json_response({"choices": [{"prompt_logprobs": entries}]})


def _entry(token: int) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": -4.0}, {"token_id": 4 + (token + 1) % (VOCAB - 4), "logprob": -4.5}]
    return {"token_id": token, "logprob": -4.0, "top_logprobs": top}


if __name__ == "__main__":
    web.run_app(TokenServer().app(), host="127.0.0.1", port=int(sys.argv[1]), print=None)
