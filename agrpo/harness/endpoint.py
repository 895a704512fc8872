"""An OpenAI-compatible endpoint on loopback with an address of its own for every rollout."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from contextvars import Context
from typing import Any

from aiohttp import web

from agrpo.errors import PromptTooLong, RequestRefused
from agrpo.harness.messages import UnreadableMessage, outgoing
from agrpo.harness.session import Exchange, Session

MAX_REQUEST_BYTES = 64 * 2**20


class Endpoint:
    """Answers `POST /<key>/v1/chat/completions` for the sessions that are open."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._sessions: dict[str, tuple[Session, Context]] = {}
        self._runner: web.AppRunner | None = None
        self._address = ""

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/{key}/v1/chat/completions", self._complete)
        app.router.add_get("/{key}/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self._address = f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    @contextlib.contextmanager
    def open(self, session: Session, context: Context) -> Iterator[tuple[str, str]]:
        """Serve a session; the base URL and API key for its agent. Requests run in the rollout's own context."""
        key = secrets.token_hex(16)
        self._sessions[key] = session, context
        try:
            yield f"{self._address}/{key}/v1", key
        finally:
            del self._sessions[key]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model_name, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["key"] not in self._sessions:
            return _refusal(404, "this rollout is over; an agent may only ask until it returns")
        session, context = self._sessions[request.match_info["key"]]
        body = await request.json()
        if body.get("n", 1) != 1:
            return _refusal(400, "n: one completion at a time is recorded")
        answer = session.answer(body["messages"], body.get("tools") or [])
        try:
            exchange = await asyncio.get_running_loop().create_task(answer, context=context)
        except UnreadableMessage as error:
            return _refusal(400, str(error))
        except Exception as error:
            session.error = error
            is_final = isinstance(error, PromptTooLong | RequestRefused)
            return _refusal(400 if is_final else 503, str(error))
        number = len(session.exchanges)
        return await self._stream(request, exchange, number) if body.get("stream") else self._whole(exchange, number)

    def _whole(self, exchange: Exchange, number: int) -> web.Response:
        message = outgoing(exchange.reply, number)
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(exchange, message), "logprobs": None}
        return web.json_response(
            {**self._head(number, "chat.completion"), "choices": [choice], "usage": _usage(exchange)}
        )

    async def _stream(self, request: web.Request, exchange: Exchange, number: int) -> web.StreamResponse:
        """The whole answer as one event, for agents that only know streams."""
        message = outgoing(exchange.reply, number)
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", []))]
        delta = {**message, "tool_calls": calls} if calls else message
        choices = [
            {"index": 0, "delta": delta, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": _finish_reason(exchange, message)},
        ]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choice in choices:
            chunk = {**self._head(number, "chat.completion.chunk"), "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _head(self, number: int, kind: str) -> dict[str, Any]:
        return {"id": f"turn-{number}", "object": kind, "created": int(time.time()), "model": self._model_name}


def _finish_reason(exchange: Exchange, message: dict[str, Any]) -> str:
    if exchange.turn.finish_reason == "length":
        return "length"
    return "tool_calls" if "tool_calls" in message else "stop"


def _usage(exchange: Exchange) -> dict[str, int]:
    num_prompt, num_output = len(exchange.turn.prompt_ids), len(exchange.turn.output_ids)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}


def _refusal(status: int, message: str) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response({"error": {"message": message, "type": kind, "code": None}}, status=status)
