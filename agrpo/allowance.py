"""How far generation may run ahead of training, counted in raw sample tokens."""

from dataclasses import dataclass


def allowance_tokens(step_tokens: int, max_staleness: int) -> int:
    """Tokens that the worker may hold, queued or in flight, after a step that used `step_tokens`."""
    return step_tokens * max(max_staleness, 1)


def full_step_tokens(step_tokens: int, num_groups: int, groups_per_step: int | None) -> int:
    """What a step of `groups_per_step` groups would have used, where one closed with fewer.

    Else a short step would lower the allowance, and the allowance would keep every later step short.
    """
    if groups_per_step is None or num_groups == 0:
        return step_tokens
    return max(step_tokens, step_tokens * groups_per_step // num_groups)


def first_allowance(token_budget: int, num_processes: int, gradient_accumulation_steps: int, max_staleness: int) -> int:
    """The allowance before the first step: every row of it is assumed full."""
    return allowance_tokens(token_budget * num_processes * gradient_accumulation_steps, max_staleness)


@dataclass(slots=True)
class GroupSize:
    """Mean sample tokens of the groups completed so far: the estimate for those still in flight."""

    num_groups: int = 0
    num_tokens: int = 0

    def add(self, num_tokens: int) -> None:
        """Count one completed group."""
        self.num_groups += 1
        self.num_tokens += num_tokens

    @property
    def mean(self) -> float | None:
        """Tokens per group, None before the first one is complete."""
        return self.num_tokens / self.num_groups if self.num_groups else None


def held_tokens(pending_tokens: int, num_groups_in_flight: int, group_tokens: float) -> float:
    """Tokens waiting in the store plus the estimate for groups being generated or scored."""
    return pending_tokens + num_groups_in_flight * group_tokens


def admits(
    allowance: int, pending_tokens: int, num_groups_in_flight: int, group_tokens: float | None, num_elsewhere: int = 0
) -> bool:
    """Whether a worker may start one more group beside its own and the `num_elsewhere` that other workers generate.

    Until its first group is complete (None) each worker starts one at a time, whatever the others do.
    """
    if group_tokens is None:
        return num_groups_in_flight == 0 and pending_tokens < allowance
    return held_tokens(pending_tokens, num_groups_in_flight + num_elsewhere, group_tokens) < allowance
