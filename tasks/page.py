"""The page on a run in Prefect's UI: plot, last numbers, processes, and why anything was begun again."""

import base64
from collections.abc import Sequence

from agrpo.cli.numbers import duration, evaluation_line, number
from agrpo.cli.progress import Progress
from agrpo.plotting.drawing import draw
from agrpo.plotting.history import History, Mark
from agrpo.store.evaluations import Evaluation

_WATCHED = (
    "reward",
    "entropy",
    "completions/mean_length",
    "sample/staleness_mean",
    "perf/step_s",
    "perf/wall_clock_trained_tokens_per_s",
)
_LAST_RESTARTS = 10
_LAST_EVALUATIONS = 10


def picture(history: History) -> str:
    """The plot as an image that lies in the page itself."""
    return f"![plot](data:image/png;base64,{base64.b64encode(draw([history], 'png')).decode()})"


def markdown(progress: Progress, marks: list[Mark], plot: str = "", evaluated: Sequence[Evaluation] = ()) -> str:
    """The run on one page: where it stands, its last numbers and evaluations, its processes, its restarts."""
    total = f" of {progress.num_steps}" if progress.num_steps else ""
    lines = [f"# {progress.run_id}: {progress.phase}", "", f"step {progress.step}{total}, {duration(progress.wall_s)}"]
    lines += ["", plot, "", "| metric | last |", "|---|---|"]
    lines += [f"| {name} | {number(progress.last[name], 3)} |" for name in _WATCHED if name in progress.last]
    if evaluated:
        lines += ["", "| evaluated, with 95 % intervals |", "|---|"]
        lines += [f"| {evaluation_line(one)} |" for one in evaluated[-_LAST_EVALUATIONS:]]
    lines += ["", "| process | state | doing |", "|---|---|---|"]
    doing = progress.waits_for
    lines += [f"| {name} | {state} | {doing.get(name, '')} |" for name, state in progress.processes.items()]
    if marks:
        lines += ["", "| after step | begun again because |", "|---|---|"]
        lines += [f"| {mark.step} | {_cell(mark.says)} |" for mark in marks[-_LAST_RESTARTS:]]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """In one line, and without what would end the cell."""
    return " ".join(text.split()).replace("|", r"\|")
