"""An OpenAI-compatible endpoint on loopback with an address of its own for every rollout."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from agrpo.errors import PromptTooLong, RequestRefused
from agrpo.harness.messages import BadRequest, outgoing
from agrpo.harness.request import ChatRequest, read_request
from agrpo.harness.session import ContextFull, Exchange, Session

MAX_REQUEST_BYTES = 64 * 2**20
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a conversation that the model cannot hold."""
OVER = "this rollout is over; an agent may only ask until it returns"


@dataclass(frozen=True, slots=True)
class _Open:
    """A session that is being served."""

    session: Session
    context: Context
    in_flight: set[asyncio.Task[Exchange]] = field(default_factory=set)


class Endpoint:
    """Answers `POST /<key>/v1/chat/completions` for the sessions that are open."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._open: dict[str, _Open] = {}
        self._runner: web.AppRunner | None = None
        self._address = ""
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1, unless it does already."""
        async with self._starting:
            if self._runner is None:
                self._runner = await self._listen()

    async def _listen(self) -> web.AppRunner:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/{key}/v1/chat/completions", self._complete)
        app.router.add_get("/{key}/v1/models", self._models)
        # A client that has gone away, to ask again perhaps, must not leave a turn that its agent never saw.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self._address = f"http://{host}:{port}"
        return runner

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    @contextlib.contextmanager
    def open(self, session: Session, context: Context) -> Iterator[tuple[str, str]]:
        """Serve a session; the base URL and API key for its agent. Requests run in the rollout's own context.

        What is still being answered at the end is cancelled.
        """
        key = secrets.token_hex(16)
        opened = self._open[key] = _Open(session, context)
        try:
            yield f"{self._address}/{key}/v1", key
        finally:
            del self._open[key]
            for task in opened.in_flight:
                task.cancel()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model_name, "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        opened = self._open.get(request.match_info["key"])
        if opened is None:
            return _refusal(404, OVER)
        try:
            asked = read_request(await request.json())
        except BadRequest as error:
            return _refusal(400, str(error))
        except ValueError as error:
            return _refusal(400, f"the body is no JSON: {error}")
        try:
            exchange = await self._answer(opened, asked)
        except (ContextFull, PromptTooLong) as error:
            return _refusal(400, str(error), TOO_LONG)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return _refusal(404, OVER)
        except Exception as error:
            return _refusal(400 if isinstance(error, RequestRefused) else 503, str(error))
        return await self._stream(request, exchange, asked) if asked.stream else self._whole(exchange)

    async def _answer(self, opened: _Open, asked: ChatRequest) -> Exchange:
        task = asyncio.get_running_loop().create_task(opened.session.answer(asked), context=opened.context)
        opened.in_flight.add(task)
        task.add_done_callback(opened.in_flight.discard)
        return await task

    def _whole(self, exchange: Exchange) -> web.Response:
        message = outgoing(exchange.reply, exchange.number)
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(exchange, message), "logprobs": None}
        head = self._head(exchange, "chat.completion")
        return web.json_response({**head, "choices": [choice], "usage": _usage(exchange)})

    async def _stream(self, request: web.Request, exchange: Exchange, asked: ChatRequest) -> web.StreamResponse:
        """The whole answer as one event, for agents that only know streams."""
        message = outgoing(exchange.reply, exchange.number)
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", []))]
        delta = {**message, "tool_calls": calls} if calls else message
        last = {"index": 0, "delta": {}, "finish_reason": _finish_reason(exchange, message)}
        events: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [last]},
        ]
        if asked.usage_in_stream:
            events.append({"choices": [], "usage": _usage(exchange)})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            chunk = {**self._head(exchange, "chat.completion.chunk"), **event}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _head(self, exchange: Exchange, kind: str) -> dict[str, Any]:
        return {"id": f"turn-{exchange.number}", "object": kind, "created": int(time.time()), "model": self._model_name}


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _finish_reason(exchange: Exchange, message: dict[str, Any]) -> str:
    if exchange.turn.finish_reason == "length":
        return "length"
    return "tool_calls" if "tool_calls" in message else "stop"


def _usage(exchange: Exchange) -> dict[str, int]:
    num_prompt, num_output = len(exchange.turn.prompt_ids), len(exchange.turn.output_ids)
    return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}


def _refusal(status: int, message: str, code: str | None = None) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.json_response({"error": {"message": message, "type": kind, "code": code}}, status=status)
