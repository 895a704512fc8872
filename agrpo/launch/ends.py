"""What follows from the end of a child: another try, or which error of the run."""

from agrpo.errors import AgrpoError, BadInput, ChildFailed
from agrpo.launch import exits
from agrpo.launch.tracked import Tracked


def may_restart(child: Tracked, code: int | None, in_a_row: int, has_answered: bool) -> bool:
    """Whether another try may go better, after so many in a row."""
    if exits.verdict(code) not in (exits.Verdict.DONE, exits.Verdict.RESTART):
        return False
    limit = child.spec.restart_limit
    return in_a_row < (min(1, limit) if _never_worked(child, code, has_answered) else limit)


def why_over(child: Tracked, code: int | None, reason: str, has_answered: bool) -> AgrpoError:
    """BadInput when the child ended because of what the user gave it, else ChildFailed with its last lines."""
    said = child.refusal()
    if code == exits.BAD_INPUT and said is not None:
        return BadInput(f"{child.spec.name}: {said}")
    if _never_worked(child, code, has_answered):
        return BadInput(f"{reason} before it ever answered; mend what it complains about: {child.log_end()}")
    again = f" after {child.restarts} restarts" if child.restarts else ""
    return ChildFailed(f"{reason}{again}; {child.log_end()}")


def _never_worked(child: Tracked, code: int | None, has_answered: bool) -> bool:
    """A server that ends by itself before it ever answered would mostly do so again."""
    return child.url is not None and not has_answered and code is not None and code > 0
