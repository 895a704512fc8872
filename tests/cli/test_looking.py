"""`agrpo rollouts`, `why` and `plot` on a run of three groups and a few logged steps."""

import json
from pathlib import Path

import pytest

from agrpo.cli.plot import plot_runs
from agrpo.cli.rollouts import print_rollouts
from agrpo.cli.why import print_diagnoses
from agrpo.errors import BadInput
from agrpo.store import Attempt, Store, events, metrics, runs, samples
from tests.worlds.small_groups import generate, start_run, start_worker


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """A run whose first sample is stale, with four logged steps and a restart between the second and the third."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    attempt = start_run(store)
    runs.set_status(attempt, "running")
    generate(attempt, start_worker(attempt), 3)
    samples.drop(attempt, [1], "stale")
    for step in (1, 2, 3, 4):
        if step == 3:
            events.add(attempt, "restart", "worker 0 was ended by signal 9; restart 1 of 3 in 1 s")
        waits = {"perf/step_s": 10.0, "perf/rollout_wait_s": 6.0}
        metrics.log(attempt, step, {"reward": step / 10, "loss": 0.1, "entropy": 2.0, **waits})
    return attempt


def test_rollouts_are_read_as_conversations(attempt: Attempt, capsys: pytest.CaptureFixture[str]) -> None:
    print_rollouts(attempt.store.url, "small", group=1)
    printed = capsys.readouterr().out
    for expected in ("group 1, prompt 0, rollout 0", "dropped: stale", "advantage 1.00", "user: 0", "assistant: x"):
        assert expected in printed


def test_rollouts_as_json_are_one_a_line(attempt: Attempt, capsys: pytest.CaptureFixture[str]) -> None:
    print_rollouts(attempt.store.url, "small", status="dropped", as_json=True)
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["reason"] == "stale"


def test_no_rollout_and_no_run_are_told_apart(attempt: Attempt, capsys: pytest.CaptureFixture[str]) -> None:
    print_rollouts(attempt.store.url, "small", step=9)
    assert capsys.readouterr().out == "no such rollout\n"
    with pytest.raises(BadInput, match="there is no run 'smal' in this store: did you mean 'small'"):
        print_rollouts(attempt.store.url, "smal")


def test_why_leads_to_the_rollouts_of_this_run_in_this_store(
    attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(5, 40):  # most groups score the same, between the worst and the best reward
        metrics.log(attempt, step, {"reward": 0.5, "reward_dropped": 0.5, "frac_reward_zero_std": 0.9})
    print_diagnoses(attempt.store.url, "small", as_json=True)
    said = {one["topic"]: one["says"] for one in json.loads(capsys.readouterr().out)}
    assert said["learning"].endswith(f"agrpo rollouts small --store {attempt.store.url} --status dropped")


def test_why_names_the_waiting_side_and_what_died(attempt: Attempt, capsys: pytest.CaptureFixture[str]) -> None:
    print_diagnoses(attempt.store.url, "small", as_json=True)
    said = {one["topic"]: one["says"] for one in json.loads(capsys.readouterr().out)}
    assert "generation is the bottleneck" in said["bottleneck"]
    assert "worker 0 was ended by signal 9" in said["restarts"]
    runs.set_status(attempt, "failed", "trainer 0 ended with exit code 70 (a bug)")
    print_diagnoses(attempt.store.url, "small", as_json=True)
    [end] = [one["says"] for one in json.loads(capsys.readouterr().out) if one["topic"] == "end"]
    assert "exit code 70" in end
    assert end.endswith(f"agrpo resume small --store {attempt.store.url}")


def test_a_plot_is_a_picture_and_a_page_of_its_own(attempt: Attempt, tmp_path: Path) -> None:
    picture, page = plot_runs(attempt.store.url, ["small"], tmp_path / "plots")
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "<svg" in text
    assert "step 2</td><td>worker 0 was ended by signal 9" in text
    for outside in ('src="http', 'href="http', "url(http", "<script"):
        assert outside not in text.replace('xlink:href="#', "")


def test_several_runs_share_the_axes(attempt: Attempt, tmp_path: Path) -> None:
    runs.create_run(attempt.store, "other", {}, "hash", str(tmp_path / "other"))
    picture, page = plot_runs(attempt.store.url, ["small", "other"], tmp_path)
    assert picture.name == "plot-small-other.png"
    assert "other (created)" in page.read_text()


def test_a_plot_that_cannot_be_written_is_one_line(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot be written \(.*\): name another folder with --output"):
        plot_runs(attempt.store.url, ["small"], tmp_path / "file")
