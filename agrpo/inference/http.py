"""JSON over HTTP to one server: every failure becomes one of three named errors."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from agrpo.errors import MalformedAnswer, RequestRefused, ServerOutage

JSON = dict[str, Any]
T = TypeVar("T")

_BUSY_STATUSES = {408, 425, 429}
_LONGEST_QUOTE = 400
_CONNECT_S = 30.0
_IDLE_S = 4.0
"""An idle connection is dropped before vLLM drops it, after 5 s, just when a request goes out."""


class HttpServer:
    """One server by its base URL; use from one event loop, close at the end.

    Without `keep_alive` every request has a connection of its own: after an answer of 500 uvicorn resets the
    connection, and the next request on it would fail for nothing.
    """

    def __init__(self, base_url: str, timeout_s: float, keep_alive: bool = True) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self._keep_alive = keep_alive
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; further use opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, timeout_s: float | None = None) -> JSON:
        """The JSON object that `path` answers; errors as in `text`."""
        return self._object(path, await self.text("GET", path, timeout_s=timeout_s))

    async def post(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None) -> JSON:
        """The JSON object that `path` answers to `body`; errors as in `text`."""
        return self._object(path, await self.text("POST", path, body, timeout_s))

    async def text(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> str:
        """The text of one answer; one request, never repeated.

        Raises:
            ServerOutage: no connection, no whole answer within the time limit in seconds, 5xx, or "try later".
            RequestRefused: any other 4xx, with the server's words.
        """
        status, text = await self.exchange(method, path, body, timeout_s)
        where = f"{method} {self.base_url}{path}"
        if status >= 500 or status in _BUSY_STATUSES:
            raise ServerOutage(f"{where} answered {status}: {quote(text)}")
        if status >= 400:
            raise RequestRefused(f"{where} answered {status}: {quote(text)}")
        return text

    async def exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None
    ) -> tuple[int, str]:
        """Status and text of one answer, whatever the status; ServerOutage as in `text` when there is none."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        where = f"{method} {self.base_url}{path}"
        limits = aiohttp.ClientTimeout(total=limit_s, sock_connect=min(limit_s, _CONNECT_S))
        try:
            async with self._connected().request(method, self.base_url + path, json=body, timeout=limits) as response:
                return response.status, await response.text()
        except TimeoutError as error:
            raise ServerOutage(f"{where} gave no answer within {limit_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerOutage(f"{where} failed: {error or type(error).__name__}") from error
        except UnicodeDecodeError as error:
            raise MalformedAnswer(f"{where} answered bytes that are no text") from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The number of requests in flight is limited by whoever sends them, hence limit=0.
            reuse: dict[str, Any] = {"keepalive_timeout": _IDLE_S} if self._keep_alive else {"force_close": True}
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, **reuse))
        return self._session

    def _object(self, path: str, text: str) -> JSON:
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise MalformedAnswer(f"{self.base_url}{path} answered no JSON: {quote(text)}") from error
        if not isinstance(answer, dict):
            raise MalformedAnswer(f"{self.base_url}{path} answered no JSON object: {quote(text)}")
        return answer


def quote(text: str) -> str:
    """The server's own words from an error body, on one line, cut."""
    try:
        body = json.loads(text)
        words = body["error"]["message"] if isinstance(body["error"], dict) else body["error"]
    except (ValueError, KeyError, TypeError):
        words = text
    line = " ".join(str(words).split())
    return line if len(line) <= _LONGEST_QUOTE else line[:_LONGEST_QUOTE] + "..."


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code, even where an event loop already runs (notebooks)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
