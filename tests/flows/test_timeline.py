"""The stages in Prefect's timeline: never cached, never in the way."""

import httpx
import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE

from agrpo.cli.progress import Progress
from agrpo.plotting.history import History, Mark
from agrpo.store.evaluations import Evaluation
from tasks import timeline
from tasks.page import markdown, picture
from tasks.timeline import shown, unless_away

STAGES = [value for value in vars(timeline).values() if isinstance(value, Task)]


def test_no_stage_is_cached_or_kept() -> None:
    assert len(STAGES) == 13
    for stage in STAGES:
        assert stage.cache_policy == NO_CACHE
        assert stage.persist_result is False


class Away:
    """A stage whose Prefect server is gone."""

    def __call__(self, number: int) -> int:
        raise httpx.ConnectError("refused")

    def fn(self, number: int) -> int:
        return number + 1


class Broken(Away):
    """A stage that fails by itself."""

    def __call__(self, number: int) -> int:
        raise TimeoutError("server 0 does not answer")


def test_a_stage_is_done_without_prefect_when_prefect_is_away() -> None:
    assert shown(Away(), 1) == 2


def test_what_stands_in_the_store_too_may_be_lost_on_prefect() -> None:
    unless_away(Away(), 1)
    with pytest.raises(TimeoutError):
        unless_away(Broken(), 1)


def test_a_failing_stage_is_not_begun_again() -> None:
    with pytest.raises(TimeoutError):
        shown(Broken(), 1)


REWARD = {"value": 0.6, "low": 0.5, "high": 0.7}
HISTORY = History("climb", "running", [(3, {"reward": 0.5})], [Mark(2, "worker 0 was ended\nby signal 9 | 11")])


def test_the_page_on_a_run_names_its_numbers_processes_and_restarts() -> None:
    page = markdown(
        Progress(
            run_id="climb",
            status="running",
            phase="training",
            waits_for={"trainer 0": "step 4"},
            processes={"trainer 0": "pid 8", "worker 0": "ended by signal 9"},
            step=3,
            num_steps=12,
            wall_s=75.0,
            history=[(3, {"reward": 0.5, "other": 1.0})],
        ),
        HISTORY.marks,
        plot="![plot](data:)",
        evaluated=[Evaluation(1, "climb", 3, "m", "t", 0.0, 1.0, {"num_prompts": 8, "reward": REWARD})],
    )
    for expected in (
        "climb: training",
        "step 3 of 12, 1 min 15 s",
        "| reward | 0.500 |",
        "| trainer 0 | pid 8 | step 4 |",
        r"| 2 | worker 0 was ended by signal 9 \| 11 |",
        "![plot](data:)",
        "| step 3, 8 prompts: reward 0.6000 (0.5000 to 0.7000) |",
    ):
        assert expected in page
    assert "other" not in page


def test_the_plot_lies_in_the_page_itself() -> None:
    assert picture(HISTORY).startswith("![plot](data:image/png;base64,iVBOR")
