"""`agrpo deploy`: Prefect's deployments from prefect.yaml, without undoing what a person chose about schedules."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from agrpo.errors import AgrpoError, BadInput
from flows.api import configured_api

POOL = "agrpo-process"
Slot = tuple[str, str]
"""A schedule: its deployment's name and its slug."""


def deploy(folder: Path) -> list[str]:
    """Create or update every deployment of `folder`; what was done, a line each.

    A schedule keeps the state in which a person left it; a new one takes that of prefect.yaml.
    """
    plan = folder / "prefect.yaml"
    if not plan.is_file():
        raise BadInput(f"there is no {plan}; start in the folder that holds prefect.yaml")
    names = [str(one["name"]) for one in yaml.safe_load(plan.read_text())["deployments"]]
    with configured_api(), get_client(sync_client=True) as client:
        lines = [make_pool(pool) for pool in sorted(_pools(plan)) if not _has_pool(client, pool)]
        before = _chosen(client, names)
        _prefect("deploy", "--all", folder=folder)
        lines += list(_restore(client, names, before))
        return lines + [f"deployed {one.name}: {_schedules(one)}" for one in _deployments(client, names)]


def _pools(plan: Path) -> set[str]:
    deployments = yaml.safe_load(plan.read_text())["deployments"]
    return {str(one["work_pool"]["name"]) for one in deployments}


def _has_pool(client: SyncPrefectClient, name: str) -> bool:
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        return False
    return True


def make_pool(name: str) -> str:
    """Make the pool whose type is known; a line about it. Raises BadInput for any other name."""
    if name != POOL:
        raise BadInput(
            f"prefect.yaml names work pool {name!r}, which is not there, and its type is yours to choose: "
            f"prefect work-pool create {name} --type docker (or kubernetes, ...)"
        )
    _prefect("work-pool", "create", name, "--type", "process", folder=Path.cwd())
    return f"made work pool {name}; start a worker: prefect worker start --pool {name} --limit 1"


def _chosen(client: SyncPrefectClient, names: list[str]) -> dict[Slot, bool]:
    """Whether each schedule that is there already is active."""
    return {
        (one.name, schedule.slug or ""): schedule.active
        for one in _deployments(client, names)
        for schedule in one.schedules
    }


def _restore(client: SyncPrefectClient, names: list[str], before: dict[Slot, bool]) -> Iterator[str]:
    for one in _deployments(client, names):
        for schedule in one.schedules:
            wanted = before.get((one.name, schedule.slug or ""), schedule.active)
            if schedule.active != wanted and schedule.id is not None:
                client.update_deployment_schedule(one.id, schedule.id, active=wanted)
                yield f"{one.name}: schedule stays {'active' if wanted else 'paused'}, as it was"


def _deployments(client: SyncPrefectClient, names: list[str]) -> list[DeploymentResponse]:
    ours = DeploymentFilter(name=DeploymentFilterName(any_=names), tags=DeploymentFilterTags(all_=["agrpo"]))
    return client.read_deployments(deployment_filter=ours)


def _schedules(deployment: DeploymentResponse) -> str:
    said = [f"schedule {one.slug} {'active' if one.active else 'paused'}" for one in deployment.schedules]
    return ", ".join(said) or "no schedule"


def _prefect(*arguments: str, folder: Path) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise AgrpoError(f"prefect {' '.join(arguments)} failed:\n{(done.stdout + done.stderr).strip()}")
