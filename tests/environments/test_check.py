from typing import Any

import pytest

from agrpo.environments.check import check_environments, check_tools
from agrpo.errors import BadInput
from tests.environments.worlds import Increment, Silent


def increment(step: int) -> int:
    """A tool that is called like a method.

    Args:
        step: How far.
    """
    return step


class NoReset:
    def get_reward(self) -> float:
        return 0.0


def unnoticed() -> Increment:
    return Increment()


@pytest.mark.parametrize(
    ("factory", "tools", "scored", "dataset", "words"),
    [
        (3, (), None, None, "holds 3"),
        (NoReset, (), None, None, "NoReset has no reset"),
        (Silent, (), None, None, "nothing gives a reward: write get_reward in Silent"),
        (Increment, (increment,), None, None, "two tools are called 'increment'"),
        ({"a": Increment}, (), None, None, "needs train_dataset with a column 'environment'"),
        ({"a": Increment}, (), None, [{"prompt": []}], "needs train_dataset with a column 'environment'"),
    ],
)
def test_what_could_not_run_is_refused(factory: Any, tools: Any, scored: Any, dataset: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check_environments(factory, tools, scored, dataset)


def test_what_can_run_is_passed_on() -> None:
    assert check_environments(None, (), None, None) is None
    assert check_environments(unnoticed, (), None, None) is unnoticed
    assert check_environments(Silent, (), True, None) is Silent
    both = {"a": Increment, "b": Silent}
    assert check_environments(both, (), None, [{"environment": "a"}]) is both
    assert check_tools(None) == () and check_tools([increment]) == (increment,)
