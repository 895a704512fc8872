"""An environment behind HTTP, as OpenEnv servers offer it: POST /reset and POST /step.

    echo = functools.partial(OpenEnv, "http://127.0.0.1:8001", task="Say something.", action_field="message")
    # environment.factory: "tasks.py:echo"

A server holds one episode; give every rollout that runs at the same time a server of its own (max_concurrent_rollouts).
"""

import json
import urllib.error
import urllib.request
from typing import Any


class OpenEnv:
    """One episode a rollout; the model acts with a text, the reward is the sum of the steps' rewards."""

    def __init__(self, base_url: str, task: str = "", action_field: str = "message", timeout_s: float = 30.0) -> None:
        self._base_url = base_url.rstrip("/")
        self._task = task
        self._action_field = action_field
        self._timeout_s = timeout_s

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
