"""What `agrpo deploy` makes by itself, and what it leaves to a person."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.client.schemas.schedules import CronSchedule

from agrpo.errors import AgrpoError, BadInput
from flows import deploy as deploying
from flows.deploy import Entry, make_pool, read_plan, restore

ROOT = Path(__file__).parents[2]


def test_a_pool_of_another_name_is_not_made_as_the_wrong_kind() -> None:
    with pytest.raises(BadInput, match=r"'agrpo-docker', which is not there.*prefect work-pool create agrpo-docker"):
        make_pool("agrpo-docker")


def test_our_own_file_is_read() -> None:
    plan = read_plan(ROOT / "prefect.yaml")
    assert Entry("nightly", "flows.nightly.nightly", "agrpo-process", has_slugs=True) in plan


def test_a_deployment_may_leave_out_what_prefect_has_a_default_for(tmp_path: Path) -> None:
    (tmp_path / "prefect.yaml").write_text("deployments: [{name: mine, schedules: [{cron: '0 3 * * *'}]}]")
    assert read_plan(tmp_path / "prefect.yaml") == [Entry("mine", None, None, has_slugs=False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deployments: [", "not YAML"),
        ("- a list", "no deployments"),
        ("deployments: []", "no deployments"),
        ("deployments: [{entrypoint: flows.train.train}]", "a deployment has no name"),
        ("deployments: [{name: mine, work_pool: agrpo-process}]", "write work_pool: {name: agrpo-process}"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(BadInput) as caught:
        read_plan(tmp_path / "prefect.yaml")
    assert message in str(caught.value) and "\n" not in str(caught.value)


class Prefect:
    """Deployments with schedules; deploying sets them to what a file says, or fails after it did."""

    def __init__(self, before: list[DeploymentSchedule], after: list[DeploymentSchedule]) -> None:
        self.id = uuid4()
        self.before, self.schedules = before, before
        self._after = after

    def read_deployments(self, deployment_filter: Any) -> list[Any]:
        names = ("mine", "flows.mine.mine")
        return [SimpleNamespace(id=self.id, name=names[0], entrypoint=names[1], schedules=list(self.schedules))]

    def deploy(self, *arguments: str, folder: Path) -> None:
        self.schedules = self._after
        raise AgrpoError("prefect deploy --all failed")

    def update_deployment_schedule(self, deployment_id: object, schedule_id: object, active: bool) -> None:
        [found] = [one for one in self.schedules if one.id == schedule_id]
        found.active = active

    def create_deployment_schedules(self, deployment_id: object, schedules: list[DeploymentScheduleCreate]) -> None:
        for one in schedules:
            self.schedules.append(schedule(one.schedule.cron, one.active, one.slug))  # type: ignore[union-attr]


def schedule(cron: str, active: bool, slug: str | None = None) -> DeploymentSchedule:
    return DeploymentSchedule(id=uuid4(), schedule=CronSchedule(cron=cron), active=active, slug=slug)


def states(prefect: Prefect) -> dict[str, bool]:
    return {one.schedule.cron: one.active for one in prefect.schedules}  # type: ignore[union-attr]


def restored(prefect: Prefect, has_slugs: bool) -> list[str]:
    client: Any = prefect
    prefect.schedules = prefect._after
    return list(restore(client, client.read_deployments(None)[0], prefect.before, has_slugs))


def test_a_schedule_that_was_paused_stays_paused_where_the_file_says_active() -> None:
    prefect = Prefect([schedule("0 3 * * *", False, "nightly")], [schedule("0 4 * * *", True, "nightly")])
    [said] = restored(prefect, has_slugs=True)
    assert said == "mine: schedule nightly stays paused, as it was"
    assert states(prefect) == {"0 4 * * *": False}


def test_schedules_without_slugs_are_told_apart_by_what_they_say() -> None:
    before = [schedule("0 3 * * *", False), schedule("0 9 * * *", True)]
    prefect = Prefect(before, [schedule("0 3 * * *", True), schedule("0 9 * * *", True)])
    restored(prefect, has_slugs=False)
    assert states(prefect) == {"0 3 * * *": False, "0 9 * * *": True}


@pytest.mark.parametrize(("has_slugs", "said"), [(True, "is put back"), (False, "is gone")])
def test_a_schedule_made_by_hand_is_put_back_or_spoken_of(has_slugs: bool, said: str) -> None:
    before = [schedule("0 3 * * *", True, "nightly"), schedule("0 9 * * *", True)]
    prefect = Prefect(before, [schedule("0 3 * * *", True, "nightly")])
    assert said in "".join(restored(prefect, has_slugs))
    assert ("0 9 * * *" in states(prefect)) is has_slugs


def test_a_deploy_that_fails_half_way_leaves_schedules_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefect.yaml").write_text("deployments: [{name: mine, entrypoint: flows.mine.mine}]")
    prefect = Prefect([schedule("0 3 * * *", False, "nightly")], [schedule("0 3 * * *", True, "nightly")])
    monkeypatch.setattr(deploying, "configured_api", nullcontext)
    monkeypatch.setattr(deploying, "get_client", lambda sync_client: nullcontext(prefect))
    monkeypatch.setattr(deploying, "_prefect", prefect.deploy)
    with pytest.raises(AgrpoError, match="deploy --all failed"):
        deploying.deploy(tmp_path)
    assert states(prefect) == {"0 3 * * *": False}
