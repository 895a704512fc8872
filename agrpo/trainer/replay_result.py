"""What a replay found; read by the command line, which loads no torch."""

from dataclasses import dataclass
from typing import Any, Literal, Self

Verdict = Literal["equal", "different", "not comparable"]
EXIT_CODES: dict[Verdict, int] = {"equal": 0, "different": 1, "not comparable": 3}


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The digest of a step's weights, then and now."""

    step: int
    recorded: str
    made: str

    @property
    def is_equal(self) -> bool:
        """Whether every bit is the same."""
        return self.recorded == self.made


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The steps that were made again."""

    run_id: str
    from_step: int
    to_step: int
    start: StepCheck | None
    """The weights it began with; None when the run noted none for that step."""
    checks: list[StepCheck]
    same_environment: bool
    """Torch, hardware, attention, threads and ranks as in the whole run, and kernels that repeat themselves."""

    @property
    def verdict(self) -> Verdict:
        """Different weights say something only when everything they depend on is the same."""
        compared = self._compared()
        if compared and all(check.is_equal for check in compared):
            return "equal"
        began_alike = self.start is None or self.start.is_equal
        return "different" if compared and self.same_environment and began_alike else "not comparable"

    @property
    def first_difference(self) -> StepCheck | None:
        """The first step whose weights are others."""
        return next((check for check in self._compared() if not check.is_equal), None)

    def _compared(self) -> list[StepCheck]:
        return [*([self.start] if self.start else []), *self.checks]

    def followed_by(self, later: "ReplayResult") -> "ReplayResult":
        """Both as one: `later` began where this one ended."""
        return ReplayResult(
            later.run_id,
            self.from_step,
            later.to_step,
            self.start,
            [*self.checks, *later.checks],
            self.same_environment and later.same_environment,
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The result that `dataclasses.asdict` wrote."""
        start = StepCheck(**values["start"]) if values["start"] else None
        return cls(**values | {"start": start, "checks": [StepCheck(**check) for check in values["checks"]]})
