"""An environment of OpenEnv servers (openenv-core from 0.2 on, openenv): each instance has a session of its own at /ws.

    echo = functools.partial(OpenEnv, "http://127.0.0.1:8000", task="Say something.", action_field="message")
    # environment.factory: "tasks.py:echo"

A server has as many sessions as its `max_concurrent_envs` says, one unless told otherwise. Give as many as rollouts run
at the same time (max_concurrent_rollouts), by one server or several together; a rollout that finds none is recorded as
failed. Older servers have no sessions but one episode, and are refused. The client, websockets, comes with the
extra `adapters`.
"""

import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agrpo.errors import BadInput

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MAX_BYTES = 100 * 2**20
"""Of one observation."""
CLOSE_S = 5.0
"""How long a server may take to give a session back."""
_UNFIT = {"VALIDATION_ERROR", "EXECUTION_ERROR"}
"""The environment does not take what was sent; every other error says that the server has no session for us."""


class OpenEnv(contextlib.AbstractContextManager["OpenEnv"]):
    """One episode a rollout; the model acts with a text, the reward is the sum of the steps' rewards."""

    def __init__(
        self, base_urls: str | Sequence[str], task: str = "", action_field: str = "message", timeout_s: float = 30.0
    ) -> None:
        given = [base_urls] if isinstance(base_urls, str) else base_urls
        self._urls = [f"{url.rstrip('/')}/ws".replace("http", "ws", 1) for url in given]
        self._task = task
        self._action_field = action_field
        self._timeout_s = timeout_s
        self._session: ClientConnection | None = None

    def __exit__(self, *error: object) -> None:
        self._give_back()

    def reset(self, **columns: Any) -> str:
        """Begin an episode for the row's columns; the task and the first observation."""
        self._return = 0.0
        given = {name: value for name, value in columns.items() if name != "prompt"}
        answer = None
        if self._session is not None:
            with contextlib.suppress(ConnectionError):  # a server may end a session that was idle
                answer = self._ask(self._session, "reset", given)
        first = self._observe(answer or self._begin(given))
        return "\n".join(part for part in (self._task, first) if part)

    def act(self, action: str) -> str:
        """Take one action and see what follows.

        Args:
            action: What to do, in words.

        Returns:
            The observation, and whether the episode is over.
        """
        if self._is_over:
            return "The episode is over."
        assert self._session is not None
        return self._observe(self._ask(self._session, "step", {self._action_field: action}))

    def get_reward(self) -> float:
        """Sum of the episode's rewards."""
        return self._return

    def _observe(self, answer: Mapping[str, Any]) -> str:
        self._return += float(answer.get("reward") or 0.0)
        self._is_over = bool(answer.get("done"))
        seen = answer.get("observation", {})
        text = seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False)
        return text + ("\nThe episode is over." if self._is_over else "")

    def _begin(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The first answer in a new session, of whichever server has one to give."""
        failures = []
        for url in random.sample(self._urls, len(self._urls)):
            self._give_back()
            try:
                self._session = self._connect(url)
                return self._ask(self._session, "reset", given)
            except ConnectionError as error:
                failures.append(str(error))
        raise ConnectionError(
            f"none of {len(self._urls)} OpenEnv servers has a session to give, the last one said: {failures[-1]}; "
            "start more or raise their max_concurrent_envs, or lower max_concurrent_rollouts"
        )

    def _give_back(self) -> None:
        """End the session, and wait until the server has it: somebody else may want it at once."""
        from websockets.exceptions import WebSocketException

        session, self._session = self._session, None
        if session is None:
            return
        try:
            # Whoever was cancelled in the middle of an action still listens, and ends with the session.
            with contextlib.suppress(WebSocketException, TimeoutError):
                session.send(json.dumps({"type": "close"}))
                while True:
                    session.recv(CLOSE_S)
        finally:
            session.close()

    def _connect(self, url: str) -> "ClientConnection":
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        try:
            # Whether a server is there is asked with every action: no thread has to ping it.
            limits: dict[str, Any] = {"open_timeout": self._timeout_s, "close_timeout": CLOSE_S, "max_size": MAX_BYTES}
            return connect(url, ping_interval=None, compression=None, **limits)
        except (OSError, WebSocketException) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code < 500:
                raise BadInput(
                    f"{url} answered {error.response.status_code} instead of opening a session; give the address of an "
                    "OpenEnv server of openenv-core 0.2 or later"
                ) from None
            raise ConnectionError(f"{url} is away: {error}") from error

    def _ask(self, session: "ClientConnection", kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ValueError for what the environment refuses, ConnectionError when the session is over."""
        from websockets.exceptions import ConnectionClosed

        try:
            with contextlib.suppress(ConnectionClosed):  # what the server said before that is still to be read
                session.send(json.dumps({"type": kind, "data": data}, default=str))
            answer = json.loads(session.recv(self._timeout_s))
        except ConnectionClosed as error:
            raise ConnectionError(f"the session is over: {error}") from error
        found: dict[str, Any] = answer["data"]
        if answer["type"] == "error":
            words = f"{kind}: {found.get('message')} {found.get('errors', '')}".strip()
            raise (ValueError if found.get("code") in _UNFIT else ConnectionError)(words)
        return found
