"""Arithmetic on policy versions, all of it. A version counts the weight updates published to the servers."""


def staleness(current: int, generated: int) -> int:
    """Updates published between the policy that generated a sample and the current one."""
    return current - generated


def is_stale(current: int, generated: int, max_staleness: int) -> bool:
    """Whether a sample is too old to be trained."""
    return staleness(current, generated) > max_staleness


def publishes_after(step: int, weight_sync_steps: int) -> bool:
    """Whether the weights made by this step (from 1) go to the servers."""
    return step % weight_sync_steps == 0
