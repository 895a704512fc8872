"""A server that speaks vLLM's token protocol with answers that a test writes."""

import asyncio
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass
class Answer:
    """What the server says to one request; the defaults are a good turn of one token and an end token."""

    token_ids: list[int] = field(default_factory=lambda: [10, 1])
    log_probs: list[float | None] | None = None
    """-0.5 for every token when None."""
    status: int = 200
    after_s: float = 0.0
    after: threading.Event | None = None
    """It comes when this is set."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Replaces entries of the choice."""


Script = Callable[[list[int], dict[str, Any], int], Answer]
"""(prompt ids, sampling params, number of the request) to an answer."""


class ScriptedServer:
    """A real HTTP server on a thread; `with` starts it, `kill` cuts every connection, `start` begins again."""

    def __init__(self, script: Script = lambda prompt, params, n: Answer(), max_model_len: int = 512) -> None:
        self.script = script
        self.max_model_len = max_model_len
        self.weight_version = "0"
        self.metrics = 'vllm:cache_config_info{kv_cache_size_tokens="65536"} 1.0\nvllm:kv_cache_usage_perc 0.1\n'
        self.requests: list[tuple[list[int], dict[str, Any]]] = []
        """Prompt and sampling params of every generation request."""
        self.device = "cuda"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Listen; returns when the server answers."""
        listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        self._thread.start()
        assert listening.wait(10)

    def kill(self) -> None:
        """Drop every connection in the middle of what it does."""
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/inference/v1/generate", self._generate)
        for path in ("/v1/models", "/health", "/weight_info", "/metrics", "/server_info"):
            app.router.add_get(path, self._tell)
        runner = web.AppRunner(app, shutdown_timeout=0)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start())
        self._loop.call_soon(listening.set)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _tell(self, request: web.Request) -> web.Response:
        config = {"model_config": {"dtype": "torch.float32"}, "device_config": {"device": self.device}}
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "scripted", "max_model_len": self.max_model_len}]},
            "/weight_info": {"weight_version": self.weight_version},
            "/server_info": {"vllm_config": config},
            "/health": {},
        }
        if request.path == "/metrics":
            return web.Response(text=self.metrics)
        return web.json_response(answers[request.path])

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body:
            return web.json_response({"error": {"message": "empty request"}}, status=400)
        self.requests.append((body["token_ids"], body["sampling_params"]))
        answer = self.script(body["token_ids"], body["sampling_params"], len(self.requests))
        await asyncio.sleep(answer.after_s)
        while answer.after is not None and not answer.after.is_set():
            await asyncio.sleep(0.01)
        if answer.status != 200:
            return web.json_response({"error": {"message": "the script says no"}}, status=answer.status)
        return web.json_response({"choices": [self._choice(answer)]})

    def _choice(self, answer: Answer) -> dict[str, Any]:
        log_probs = [-0.5] * len(answer.token_ids) if answer.log_probs is None else answer.log_probs
        content = [
            {"token_id": i, "logprob": p, "top_logprobs": [{"token_id": i, "logprob": p}]}
            for i, p in zip(answer.token_ids, log_probs, strict=False)
        ]
        choice = {
            "token_ids": answer.token_ids,
            "finish_reason": "stop",
            "logprobs": {"content": content},
            "weight_versions": [{"version": self.weight_version, "start": 0, "end": len(answer.token_ids)}],
        }
        return choice | answer.changes
