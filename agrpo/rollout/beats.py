"""What the worker's loops say of themselves: each for itself, so that none hides behind another (fault 13)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class LoopBeats:
    """Collects signs of life until the books pass them on.

    Generation says what it does. Scoring has many groups in hand at once, each of which may wait for its rewards; it is
    alive while none has been in hand for longer than rewards can take.
    """

    def __init__(self, scoring_limit_s: float) -> None:
        self._scoring_limit_s = scoring_limit_s
        self._said: dict[str, str] = {}
        self._scoring_since: dict[int, float] = {}

    def generation(self, words: str) -> None:
        """The loop that starts groups went round."""
        self._said["generation"] = words

    @contextmanager
    def scoring(self, group_id: int) -> Iterator[None]:
        """A group is being scored."""
        self._scoring_since[group_id] = time.monotonic()
        try:
            yield
        finally:
            del self._scoring_since[group_id]

    def take(self) -> dict[str, str]:
        """Loops that are alive since the last call, with what each is doing; whoever asks keeps the books."""
        said, self._said = self._said, {}
        longest_s = time.monotonic() - min(self._scoring_since.values(), default=time.monotonic())
        if longest_s < self._scoring_limit_s:
            said["scoring"] = f"{len(self._scoring_since)} groups"
        return {**said, "store": "keeping the books"}
