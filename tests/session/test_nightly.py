"""What a night begins with and how it ends, with evaluations that are in the store already."""

import sys
from pathlib import Path

import pytest

from agrpo.errors import AttemptsExhausted, BadInput
from agrpo.evaluation.tasks import fingerprint
from agrpo.runfile import RunFile, config_hash, parse, stored_config
from agrpo.session.nightly import Night, check_night, conclude_night, give_up, plan_night, spoilt
from agrpo.settings import ModelSettings
from agrpo.store import Store, evaluations, leases, runs, steps
from agrpo.store.evaluations import ScoredAnswer
from tests.worlds.small_groups import name_checkpoint

ROWS = "def rows():\n    return [{'prompt': [{'role': 'user', 'content': str(n)}]} for n in range(8)]\n"
REWARD = "def reward(completions, **columns):\n    return [0.0 for _ in completions]\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFile:
    """A lineage that begins with the model `base`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nightly_rows", raising=False)
    (tmp_path / "nightly_rows.py").write_text(ROWS + REWARD)
    given = {"name": "night", "model": {"path": "base"}, "data": {"rows": "nightly_rows.py:rows"}}
    return parse({**given, "rewards": ["nightly_rows.py:reward"], "output": str(tmp_path / "runs")}, "test")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    return store


def trained(store: Store, night: Night) -> str:
    """The night's run, finished after one step; its weights."""
    run = night.run
    runs.create_run(store, run.name, stored_config(run), config_hash(run), str(run.run_dir))
    attempt = leases.acquire(store, run.name, leases.this_process())
    steps.record(attempt, 1, [], 0)
    steps.finish(attempt, 1, "digest", {})
    folder = run.run_dir / "checkpoint-1"
    folder.mkdir(parents=True)
    name_checkpoint(attempt, 1, str(folder), "digest")
    return str(folder)


def evaluated(store: Store, night: Night, model: str, reward: float) -> None:
    """A finished evaluation in which every prompt got this reward."""
    number = evaluations.begin(store, night.run.name, 1, model, fingerprint(night.run))
    for row in range(8):
        evaluations.add(store, number, [ScoredAnswer(row, sample, [], {}, reward) for sample in (0, 1)])
    evaluations.finish(store, number, {})


def asking(config: RunFile, **evaluation: object) -> RunFile:
    """The run file with another section `evaluation`."""
    return parse({**config.model_dump(), "evaluation": evaluation}, "test")


def test_both_sides_are_asked_what_the_run_file_says_now(store: Store, config: RunFile) -> None:
    """The night was begun with prompts that cannot be loaded, and some evaluations with other ones."""
    old = plan_night(store, asking(config, data={"rows": "nightly_rows.py:gone"}))
    weights = trained(store, old)
    other = plan_night(store, asking(config, num_samples=3))
    evaluated(store, other, weights, 0.9)
    night = plan_night(store, config)
    evaluated(store, night, "base", 0.6)
    evaluated(store, night, weights, 0.2)
    assert not conclude_night(store, night).promoted


def test_what_was_asked_differently_is_not_judged(store: Store, config: RunFile, tmp_path: Path) -> None:
    code = "calls = []\n\n\ndef rows():\n    calls.append(0)\n    return [{'prompt': [{'role': 'user', 'content': "
    (tmp_path / "nightly_rows.py").write_text(code + "str(len(calls) % 2)}]}]\n" + REWARD)
    night = plan_night(store, config)
    weights = trained(store, night)
    evaluated(store, night, weights, 0.6)
    evaluated(store, night, "base", 0.2)
    with pytest.raises(BadInput, match="night-1 and its baseline were not asked the same"):
        conclude_night(store, night)
    assert evaluations.promotions(store, "night") == []


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({}, "a night is judged on held-out prompts"),
        ({"data": {"rows": "nightly_rows.py:row"}}, "evaluation: .* did you mean 'rows'?"),
    ],
)
def test_a_night_without_held_out_prompts_is_refused(
    config: RunFile, tmp_path: Path, evaluation: dict[str, object], message: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    night = asking(config.model_copy(update={"model": ModelSettings(path="./model")}), **evaluation)
    with pytest.raises(BadInput, match=message):
        check_night(night)


def test_better_weights_are_promoted_and_the_next_night_begins_with_them(store: Store, config: RunFile) -> None:
    night = plan_night(store, config)
    assert (night.run.name, night.baseline, night.run.model.path) == ("night-1", "base", "base")
    weights = trained(store, night)
    evaluated(store, night, "base", 0.2)
    evaluated(store, night, weights, 0.6)
    decision = conclude_night(store, night)
    assert decision.promoted
    assert decision.numbers["difference"] == pytest.approx(0.4)
    assert (Path(config.output) / "night" / "promoted").resolve() == Path(weights)
    assert plan_night(store, config).baseline == weights


def test_worse_weights_are_rolled_back(store: Store, config: RunFile) -> None:
    night = plan_night(store, config)
    weights = trained(store, night)
    evaluated(store, night, "base", 0.6)
    evaluated(store, night, weights, 0.2)
    decision = conclude_night(store, night)
    assert not decision.promoted
    assert "rolled back" in decision.reason
    following = plan_night(store, config)
    assert (following.run.name, following.baseline) == ("night-2", "base")


def test_a_night_that_was_not_decided_is_continued(store: Store, config: RunFile) -> None:
    trained(store, plan_night(store, config))
    assert plan_night(store, config).run.name == "night-1"


def test_a_spoilt_night_makes_one_step_that_ruins_the_weights(store: Store, config: RunFile) -> None:
    night = plan_night(store, config)
    bad = spoilt(night)
    assert (bad.run.trainer.learning_rate, bad.run.trainer.max_steps) == (1000 * night.run.trainer.learning_rate, 1)
    assert bad.run.model_copy(update={"trainer": night.run.trainer}) == night.run


def test_a_night_that_is_concluded_twice_has_one_decision(store: Store, config: RunFile) -> None:
    night = plan_night(store, config)
    weights = trained(store, night)
    evaluated(store, night, "base", 0.2)
    evaluated(store, night, weights, 0.6)
    first = conclude_night(store, night)
    evaluated(store, night, weights, 0.1)
    assert conclude_night(store, night) == first
    assert evaluations.promotions(store, "night") == [first]


def test_only_a_failed_night_is_given_up(store: Store, config: RunFile) -> None:
    night = plan_night(store, config)
    assert give_up(store, night) is None
    runs.create_run(store, night.run.name, {}, "hash", "folder", max_attempts=0)
    assert give_up(store, night) is None
    with pytest.raises(AttemptsExhausted):
        leases.acquire(store, night.run.name, leases.this_process())
    lost = give_up(store, night)
    assert lost is not None and "its training failed: run 'night-1' died or failed in 0 attempts" in lost.reason
    assert plan_night(store, config).number == 2
