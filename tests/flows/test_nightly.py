"""A night is trained and decided once, whatever happens to its flow; missed nights do not pile up."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect import State
from prefect.states import Cancelled, Completed, Failed

from agrpo.errors import BadInput, ChildFailed
from agrpo.runfile import RunFile, config_hash, parse, stored_config
from agrpo.session.nightly import Night
from agrpo.store import Store, evaluations, leases, runs
from agrpo.store.evaluations import Promotion
from flows.nightly import is_missed, one_night
from flows.nights import next_night, run_nights

NOW = datetime(2026, 1, 2, 9, 0, tzinfo=UTC)
CONFIG = {"name": "n", "model": {"path": "base"}, "data": {"rows": "gone.py:rows"}, "rewards": ["gone.py:reward"]}


@pytest.mark.parametrize(
    ("tags", "hours_late", "run_count", "missed"),
    [
        (["agrpo", "auto-scheduled"], 6.0, 1, True),
        (["agrpo", "auto-scheduled"], 0.1, 1, False),
        (["agrpo", "auto-scheduled"], 6.0, 2, False),  # begun in time, crashed, begun again
        (["agrpo"], 6.0, 1, False),  # a person's, that waited for a worker
    ],
)
def test_only_a_scheduled_night_that_comes_late_is_missed(
    tags: list[str], hours_late: float, run_count: int, missed: bool
) -> None:
    assert is_missed(tags, NOW - timedelta(hours=hours_late), run_count, NOW) is missed


class Nights:
    """A lineage in a store of its own, whose training is what a test says and whose decisions are roll-backs."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(f"sqlite:///{folder}/agrpo.db")
        self.store.migrate()
        self.config = parse({**CONFIG, "output": str(folder / "runs")}, "test")
        self.trained: list[str] = []

    def night(self, flow_run_id: str, state: State[Any], status: runs.Status = "finished") -> Promotion | State[Any]:
        """A flow run that trains a night until `status`, and hears `state` from it."""

        def train(run: RunFile) -> State[Any]:
            self.trained.append(run.name)
            if runs.find_run(self.store, run.name) is None:
                runs.create_run(self.store, run.name, stored_config(run), config_hash(run), str(run.run_dir))
            attempt = leases.acquire(self.store, run.name, leases.this_process(), flow_run_id=flow_run_id)
            runs.set_status(attempt, "running")
            runs.set_status(attempt, status, "worker 0 failed:\nits log" if status == "failed" else None)
            leases.release(attempt, "stopped")
            return state

        return one_night(self.store, self.config, flow_run_id, train, self.conclude)

    def conclude(self, night: Night) -> Promotion:
        """A roll-back."""
        made = Promotion(night.lineage, night.run.name, "weights", night.baseline, False, "rolled back", {})
        return evaluations.decide(self.store, made)


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """A lineage without a night."""
    return Nights(tmp_path)


def test_a_flow_run_whose_last_word_was_lost_finds_its_decision_and_trains_no_second_night(nights: Nights) -> None:
    first = nights.night("flow-1", Completed())
    assert nights.night("flow-1", Completed()) == first
    assert nights.trained == ["n-1"]
    nights.night("flow-2", Completed())
    assert nights.trained == ["n-1", "n-2"]


def test_a_stopped_night_ends_as_cancelled_and_goes_on_the_next_time(nights: Nights) -> None:
    stopped = nights.night("flow-1", Cancelled(), "stopped")
    assert isinstance(stopped, State) and stopped.is_cancelled()
    assert isinstance(nights.night("flow-1", Completed()), Promotion)
    assert nights.trained == ["n-1", "n-1"]


def test_a_failed_night_is_rolled_back_with_its_reason_and_blocks_no_other(nights: Nights) -> None:
    with pytest.raises(ChildFailed):
        nights.night("flow-1", Failed(data=ChildFailed("worker 0 failed")), "failed")
    [decision] = evaluations.promotions(nights.store, "n")
    assert (decision.promoted, decision.reason) == (False, "rolled back, as its training failed: worker 0 failed:")
    nights.night("flow-2", Completed())
    assert nights.trained == ["n-1", "n-2"]


def test_an_interrupted_spoilt_night_is_spoilt_again(nights: Nights) -> None:
    nights.night("flow-1", Completed())
    for _ in range(2):
        night = next_night(nights.store, nights.config, is_simulated=True)
        assert (night.run.name, night.run.trainer.max_steps) == ("n-2", 1)
    assert next_night(nights.store, nights.config, is_simulated=False).run.trainer.max_steps != 1


def run_file(folder: Path) -> Path:
    content = f"{{name: n, model: {{path: {folder}/gone}}, data: {{rows: gone.py:rows}}, rewards: [gone.py:reward]}}"
    path = folder / "run.yaml"
    path.write_text(content)
    return path


@pytest.mark.parametrize("simulate", [0, -1])
def test_fewer_nights_than_one_are_refused(tmp_path: Path, simulate: int) -> None:
    with pytest.raises(BadInput, match=f"--simulate {simulate}: expected 1 or more"):
        run_nights(run_file(tmp_path), (), simulate)


def test_bad_input_leaves_no_store_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGRPO_DATABASE_URL", raising=False)
    with pytest.raises(BadInput):
        run_nights(run_file(tmp_path), (), None)
    assert not (tmp_path / "runs").exists()
