"""What the tools of one rollout did, for the metrics."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call."""

    name: str | None
    """None for a tool that does not exist, or a call that could not be read."""
    seconds: float
    failed: bool


@dataclass(slots=True)
class ToolTally:
    """All calls of a rollout."""

    uses: list[ToolUse] = field(default_factory=list)
    num_unknown: int = 0
    raised: set[str] = field(default_factory=set)
    """Tools that raised an exception."""
    num_calls_by_message: list[int] = field(default_factory=list)
    """Of each message that called tools."""
    exhausted: bool = False
    """The rollout was cut while the model was still calling."""

    @property
    def num_failed(self) -> int:
        """Calls that gave the model an error."""
        return sum(use.failed for use in self.uses)
