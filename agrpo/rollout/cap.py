"""The live cap on rollouts in flight, steered by the servers' KV cache."""

from dataclasses import dataclass

CALM_KV_FRAC = 0.6
BUSY_KV_FRAC = 0.8
RAISE = 1.25
LOWER = 0.7


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What `/metrics` of all servers says at one moment."""

    kv_cache_frac: float
    """Use of the KV cache, the fullest engine's, 0 to 1."""
    kv_cache_tokens: int
    """Tokens that the caches of all servers hold; 0 when they do not say."""
    num_running: float
    num_queued: float
    num_preemptions: float
    """Since the servers started."""


class ConcurrencyCap:
    """Rises while the servers are calm and rollouts come back, falls when their KV cache fills up."""

    def __init__(self, maximum: int) -> None:
        self.value = maximum
        self._maximum = maximum
        self._num_completed = 0

    def start(self, kv_cache_tokens: int, max_model_len: int) -> None:
        """Begin with as many rollouts as fit at full length into the servers' KV cache."""
        self.value = self._clip(kv_cache_tokens // max_model_len)

    def completed(self) -> None:
        """Count one rollout that came back."""
        self._num_completed += 1

    def observe(self, load: ServerLoad) -> None:
        """Adjust to one reading; raises at most once per cap-sized batch of completed rollouts."""
        if load.kv_cache_frac > BUSY_KV_FRAC:
            self.value = self._clip(int(self.value * LOWER))
            self._num_completed = 0
        elif load.kv_cache_frac < CALM_KV_FRAC and load.num_queued == 0 and self._num_completed >= self.value:
            self.value = self._clip(max(int(self.value * RAISE), self.value + 1))
            self._num_completed = 0

    def _clip(self, value: int) -> int:
        return max(1, min(value, self._maximum))
