"""`agrpo deploy`: Prefect's deployments from prefect.yaml, without undoing what a person chose about schedules."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from agrpo.errors import AgrpoError, BadInput
from flows.api import configured_api

POOL = "agrpo-process"


@dataclass(frozen=True, slots=True)
class Entry:
    """A deployment as prefect.yaml has it."""

    name: str
    entrypoint: str | None
    pool: str | None
    has_slugs: bool
    """Whether each of its schedules has one: what is there without a slug, a person has then made."""


def deploy(folder: Path) -> list[str]:
    """Create or update every deployment of `folder`; what was done, a line each.

    A schedule keeps the state in which a person left it; a new one takes that of prefect.yaml. Raises BadInput for a
    file that cannot be used.
    """
    plan = read_plan(folder / "prefect.yaml")
    with configured_api(), get_client(sync_client=True) as client:
        pools = sorted({one.pool for one in plan if one.pool is not None})
        lines = [make_pool(pool) for pool in pools if not _has_pool(client, pool)]
        before = {one.id: one.schedules for one in _named(client, plan)}
        try:
            _prefect("deploy", "--all", folder=folder)
        finally:  # some may be deployed
            slugged = {one.name for one in plan if one.has_slugs}
            for one in _deployments(client, plan):
                lines += restore(client, one, before.get(one.id, []), one.name in slugged)
        return lines + [f"deployed {one.name}: {_schedules(one)}" for one in _deployments(client, plan)]


def read_plan(path: Path) -> list[Entry]:
    """The deployments of a prefect.yaml. Raises BadInput."""
    if not path.is_file():
        raise BadInput(f"there is no {path}; start in the folder that holds prefect.yaml")
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    listed = content.get("deployments") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed:
        raise BadInput(f"{path}: no deployments; list at least one, as the prefect.yaml of agrpo does")
    return [_entry(path, one) for one in listed]


def _entry(path: Path, given: Any) -> Entry:
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str):
        raise BadInput(f"{path}: a deployment has no name ({shorten(str(given), 80)}); give each one")
    pool = given.get("work_pool") or {}
    if not isinstance(pool, dict) or not isinstance(pool.get("name"), str | None):
        raise BadInput(f"{path}: deployment {name}: work_pool {pool!r} will not do; write work_pool: {{name: {POOL}}}")
    schedules = given.get("schedules") or []
    has_slugs = all(isinstance(one, dict) and one.get("slug") for one in schedules)
    return Entry(name, given.get("entrypoint"), pool.get("name"), has_slugs)


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


def restore(
    client: SyncPrefectClient, deployment: DeploymentResponse, before: list[DeploymentSchedule], has_slugs: bool
) -> Iterator[str]:
    """Leave each schedule as it was before the deploy, which sets their states and may drop those made by hand."""
    now = {_key(one): one for one in deployment.schedules}
    for old in before:
        new, name = now.get(_key(old)), f"{deployment.name}: schedule {old.slug or old.schedule}"
        if new is None and has_slugs:
            kept = old.model_dump(include=set(DeploymentScheduleCreate.model_fields))
            client.create_deployment_schedules(deployment.id, [DeploymentScheduleCreate.model_validate(kept)])
            yield f"{name} is put back; prefect.yaml does not name it"
        elif new is None:
            yield f"{name} is gone, as prefect.yaml does not name it"
        elif new.active != old.active and new.id is not None:
            client.update_deployment_schedule(deployment.id, new.id, active=old.active)
            yield f"{name} stays {'active' if old.active else 'paused'}, as it was"


def _key(schedule: DeploymentSchedule) -> str:
    return schedule.slug or f"{schedule.schedule.model_dump_json()} {schedule.parameters}"


def _deployments(client: SyncPrefectClient, plan: list[Entry]) -> list[DeploymentResponse]:
    """Those of the plan that are there; other flows may have deployments of the same names."""
    wanted = {(one.name, one.entrypoint) for one in plan}
    return [one for one in _named(client, plan) if (one.name, one.entrypoint) in wanted]


def _named(client: SyncPrefectClient, plan: list[Entry]) -> list[DeploymentResponse]:
    """By name alone: tags are the user's to choose, and an entrypoint may change."""
    names = DeploymentFilterName(any_=[one.name for one in plan])
    return client.read_deployments(deployment_filter=DeploymentFilter(name=names))


def _schedules(deployment: DeploymentResponse) -> str:
    said = [f"schedule {one.slug} {'active' if one.active else 'paused'}" for one in deployment.schedules]
    return ", ".join(said) or "no schedule"


def _prefect(*arguments: str, folder: Path) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise AgrpoError(f"prefect {' '.join(arguments)} failed:\n{(done.stdout + done.stderr).strip()}")
