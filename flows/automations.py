"""Automations as code: a flow run that crashed, or fell silent with its machine, is begun again by itself.

Prefect only says "again"; the flow itself looks whether there is anything left to do, and how often it was tried.
"""

from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.schemas.automations import AutomationCore

from flows.api import configured_api

TAG = "agrpo"
"""Flow runs of deployments carry it; runs started from a shell do not, as no worker could start them again."""
DIED = "its process died: begin again"
SILENT = "no heartbeat: begin again"
"""The messages of states that the automations made."""

_SCOPE = {
    "match": {"prefect.resource.id": "prefect.flow-run.*"},
    "match_related": {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"},
    "for_each": ["prefect.resource.id"],
    "threshold": 1,
}
_SPEAKS = ("heartbeat", "Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")


def definitions(silent_s: int) -> list[AutomationCore]:
    """Both automations; `silent_s` without a heartbeat count as dead."""
    crashed = {"type": "event", "posture": "Reactive", "within": 0, "expect": ["prefect.flow-run.Crashed"], **_SCOPE}
    silent = {
        "type": "event",
        "posture": "Proactive",
        "within": silent_s,
        "after": ["prefect.flow-run.heartbeat"],
        "expect": [f"prefect.flow-run.{word}" for word in _SPEAKS],
        **_SCOPE,
    }
    return [
        _automation("agrpo-resume-crashed", DIED, crashed),
        _automation("agrpo-resume-silent", SILENT, silent),
    ]


def put_automations(silent_s: int) -> list[str]:
    """Create or update them by name; one that a person switched off stays off. A line each."""
    with configured_api(), get_client(sync_client=True) as client:
        return [_put(client, wanted) for wanted in definitions(silent_s)]


def _put(client: SyncPrefectClient, wanted: AutomationCore) -> str:
    for found in client.read_automations_by_name(wanted.name):
        client.update_automation(found.id, wanted.model_copy(update={"enabled": found.enabled}))
        return f"updated {wanted.name}{'' if found.enabled else ' (switched off)'}"
    client.create_automation(wanted)
    return f"created {wanted.name}"


def _automation(name: str, message: str, trigger: dict[str, Any]) -> AutomationCore:
    again = {"type": "change-flow-run-state", "state": "SCHEDULED", "name": "AwaitingRetry", "message": message}
    about = f"Runs with the tag {TAG}; each ends by itself after limits.max_attempts attempts, an evaluation after 5."
    return AutomationCore.model_validate({"name": name, "description": about, "trigger": trigger, "actions": [again]})
