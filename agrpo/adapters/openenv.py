"""An environment behind HTTP, as OpenEnv servers offer it: POST /reset and POST /step.

    urls = [f"http://127.0.0.1:{port}" for port in range(8001, 8009)]
    echo = functools.partial(OpenEnv, urls, task="Say something.", action_field="message")
    # environment.factory: "tasks.py:echo"

A server holds one episode, so every instance has one to itself: give as many as rollouts run at the same time
(max_concurrent_rollouts). Who has which is known on one machine only: workers of several need servers of their own.
"""

import fcntl
import hashlib
import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from agrpo.errors import BadInput


class OpenEnv:
    """One episode a rollout; the model acts with a text, the reward is the sum of the steps' rewards."""

    def __init__(
        self, base_urls: str | Sequence[str], task: str = "", action_field: str = "message", timeout_s: float = 30.0
    ) -> None:
        given = [base_urls] if isinstance(base_urls, str) else base_urls
        self._base_urls = [url.rstrip("/") for url in given]
        self._task = task
        self._action_field = action_field
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        """Take a server that is free. Raises BadInput when none is."""
        self._base_url, self._lock = _take(self._base_urls)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

    def reset(self, **columns: Any) -> str:
        """Begin an episode; the task and the first observation."""
        self._return = 0.0
        self._is_over = False
        return "\n".join(part for part in (self._task, self._observe(self._post("/reset", {}))) if part)

    def act(self, action: str) -> str:
        """Take one action and see what follows.

        Args:
            action: What to do, in words.

        Returns:
            The observation, and whether the episode is over.
        """
        if self._is_over:
            return "The episode is over."
        return self._observe(self._post("/step", {"action": {self._action_field: action}}))

    def get_reward(self) -> float:
        """Sum of the episode's rewards."""
        return self._return

    def _observe(self, answer: dict[str, Any]) -> str:
        self._return += float(answer.get("reward") or 0.0)
        self._is_over = bool(answer.get("done"))
        seen = answer.get("observation", {})
        text = seen if isinstance(seen, str) else json.dumps(seen, ensure_ascii=False)
        return text + ("\nThe episode is over." if self._is_over else "")

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises ConnectionError for a server that is away or answers 5xx: an outage, not the model's doing."""
        request = urllib.request.Request(
            self._base_url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                answer: dict[str, Any] = json.loads(response.read())
                return answer
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise ValueError(f"{path} refused: {error.read().decode(errors='replace')[:500]}") from None
            raise ConnectionError(f"{self._base_url}{path} answered {error.code}") from error
        except urllib.error.URLError as error:
            raise ConnectionError(f"{self._base_url}{path} is away: {error.reason}") from error


def _take(urls: Sequence[str]) -> tuple[str, int]:
    """A server and the lock that keeps it; a process that dies gives its locks back."""
    for url in urls:
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        lock = os.open(Path(tempfile.gettempdir()) / f"agrpo-openenv-{os.getuid()}-{name}", os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return url, lock
    raise BadInput(
        f"no OpenEnv server is free: {len(urls)} given, and each holds one episode; give one for every rollout that "
        "runs at the same time, or lower max_concurrent_rollouts"
    )
