"""Should a flow run that was begun again work at all? Automations begin one by mistake, or for ever.

A last heartbeat may overtake the word that a run has ended: the automation for silent machines then finds a run that
spoke and fell silent, and begins it again, also one that a person cancelled. And what dies before the store hears of it
would be begun again without end.
"""

from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from flows.automations import DIED, SILENT


def ended_already(max_attempts: int) -> State[Any] | None:
    """The state with which this flow run should end at once; None when it is rightly here."""
    if flow_run.id is None or flow_run.run_count <= 1:
        return None
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(UUID(str(flow_run.id)))
    return overtaken(states) or used_up(states, max_attempts)


def overtaken(states: list[State]) -> State | None:
    """The newest final state, if the automation for silence is all that followed it."""
    ordered = _in_order(states)
    begun = max((index for index, state in enumerate(ordered) if state.is_scheduled()), default=0)
    if begun == 0 or ordered[begun].message != SILENT:
        return None
    before = ordered[begun - 1]
    return before if before.is_final() and not before.is_crashed() else None


def used_up(states: list[State], max_attempts: int) -> State[Any] | None:
    """Failed, which no automation begins again, when they have made so many attempts since a person last began it."""
    num_begun, why = 0, None
    for state in _in_order(states):
        if state.is_scheduled():
            why = state.message
            num_begun = num_begun if why in (DIED, SILENT) else 0
        elif state.is_running():
            num_begun += why is not None  # two reports of one crash schedule it twice
            why = None
    if num_begun <= max_attempts:
        return None
    return Failed(message=f"it died in {max_attempts} attempts, the limit: read its logs, mend the reason, then Retry")


def _in_order(states: list[State]) -> list[State]:
    """First to last, without what only says that no worker has come yet."""
    return sorted((state for state in states if state.name != "Late"), key=lambda state: state.timestamp)
