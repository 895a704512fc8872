"""What makes two evaluations comparable."""

import sys
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import BadInput
from agrpo.evaluation.tasks import fingerprint, held_out_rows
from agrpo.runfile import RunFile, parse

ROWS = """
import datasets

def endless():
    return datasets.IterableDataset.from_generator(count)

def count():
    number = 0
    while True:
        yield {"prompt": [{"role": "user", "content": str(number)}]}
        number += 1

def torn():
    return [{"prompt": "1"}]
"""


def asked(trainer: dict[str, Any] | None = None, **sections: Any) -> RunFile:
    """A run whose prompts are those of the quickstart."""
    given = {"name": "x", "model": {"path": "m"}, "data": {"rows": "examples/quickstart.py:prompts", "limit": 2}}
    return parse(
        {**given, "rewards": ["examples/quickstart.py:right_and_brief"], "trainer": trainer or {}, **sections}, "test"
    )


@pytest.mark.parametrize(
    "other",
    [
        asked({"repetition_penalty": 1.1}),
        asked({"chat_template_kwargs": {"enable_thinking": False}}),
        asked({"max_tool_calling_iterations": 2}),
        asked({"max_completion_length": 7}),
        asked(tools=["agrpo.callables:resolve_callable"]),
        asked(loop="agrpo.rollout.loop:AsyncRolloutLoop"),
        asked(rewards=["agrpo.rewards:think_format_reward"]),
        asked(evaluation={"num_samples": 3}),
    ],
    ids=lambda run: str(run.model_dump(exclude_defaults=True, exclude={"name", "model", "data"}))[:60],
)
def test_another_question_is_another_fingerprint(other: RunFile) -> None:
    assert fingerprint(other) != fingerprint(asked())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of functions that return rows."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "held_out_rows", raising=False)
    (tmp_path / "held_out_rows.py").write_text(ROWS)
    return f"{tmp_path}/held_out_rows.py"


def test_a_stream_is_read_once_up_to_its_limit(module: str) -> None:
    run = asked(evaluation={"data": {"rows": f"{module}:endless", "limit": 3}})
    assert [row["prompt"][0]["content"] for row in held_out_rows(run)] == ["0", "1", "2"]
    assert fingerprint(run) != fingerprint(asked())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("endless", "evaluation: .*say with evaluation.data.limit how many"),
        ("torne", "evaluation: .*did you mean 'torn'?"),
        ("torn", "evaluation: row 0 of the dataset has prompt '1'; expected a conversation"),
    ],
)
def test_rows_that_cannot_be_asked_are_one_line(module: str, function: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        held_out_rows(asked(evaluation={"data": {"rows": f"{module}:{function}"}}))


def test_what_learning_alone_knows_changes_nothing() -> None:
    assert fingerprint(asked({"learning_rate": 1e-3}, name="y", limits={"restarts": 9})) == fingerprint(asked())


def test_a_reward_that_was_mended_is_another_fingerprint_also_when_only_its_helper_was(tmp_path: Path) -> None:
    file = tmp_path / "mended_scores.py"
    code = "def reward(completions, **columns):\n    return [score(one) for one in completions]\n\n\n"
    file.write_text(f"{code}def score(completion):\n    return 0.0\n")
    run = asked(rewards=[f"{file}:reward"])
    before = fingerprint(run)
    assert fingerprint(run) == before
    file.write_text(f"{code}def score(completion):\n    return len(completion)\n")
    assert fingerprint(run) != before
