"""`agrpo rewards`: the reward functions that come with agrpo."""

import dataclasses
import inspect
import json
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from agrpo import rewards

_NOT_LISTED = {"isolated"}
_ALWAYS_GIVEN = {"completions", "completion_ids", "prompts", "columns", "reasoning_delimiters", "self"}


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    parameters: str
    columns: list[str]
    about: str


def print_rewards(as_json: bool) -> None:
    """One line a reward: its name, what it is made from, the dataset's columns that it reads, what it says."""
    found = [_describe(name) for name in rewards.__all__ if name not in _NOT_LISTED]
    if as_json:
        print(json.dumps([dataclasses.asdict(reward) for reward in found]))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("reward", "columns", "what it says"):
        table.add_column(heading, overflow="fold")
    for reward in found:
        table.add_row(reward.name + reward.parameters, " ".join(reward.columns) or "-", reward.about)
    console = Console()
    console.print(table, highlight=False, markup=False)
    console.print('In a run file: rewards: ["agrpo.rewards:accuracy_reward"]. What begins with get_ makes a reward:')
    console.print('write short = get_soft_overlong_punishment(256, 64) in mine.py and name "mine.py:short".')


def _describe(name: str) -> _Listed:
    function = vars(rewards)[name]
    makes_one = name.startswith("get_")
    signature = inspect.signature(function)
    scores = signature.return_annotation.__call__ if makes_one else function
    columns = [column for column in inspect.signature(scores).parameters if column not in _ALWAYS_GIVEN]
    parameters = str(signature.replace(return_annotation=inspect.Signature.empty)) if makes_one else ""
    about = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return _Listed(name, parameters, columns, about)
