"""Was this flow run begun again by mistake? A last heartbeat may overtake the word that a run has ended.

The automation for silent machines then finds a run that spoke and fell silent, and begins it again: also one that a
person cancelled.
"""

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from flows.automations import SILENT


def state_before_mistake() -> State | None:
    """The final state that this flow run had already when silence began it again; None when it is rightly here."""
    if flow_run.id is None or flow_run.run_count <= 1:
        return None
    with get_client(sync_client=True) as client:
        return overtaken(client.read_flow_run_states(UUID(str(flow_run.id))))


def overtaken(states: list[State]) -> State | None:
    """The newest final state, if the automation for silence is all that followed it."""
    ordered = sorted(states, key=lambda state: state.timestamp)
    begun = [index for index, state in enumerate(ordered) if state.message == SILENT]
    before = ordered[begun[-1] - 1] if begun and begun[-1] > 0 else None
    return before if before is not None and before.is_final() and not before.is_crashed() else None
