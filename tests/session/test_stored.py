"""What needs a run file says so of a script's run, by the same words everywhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agrpo.cli.evaluate import print_evaluation
from agrpo.cli.fork import fork_run
from agrpo.cli.replay import print_replay
from agrpo.errors import BadInput
from agrpo.store import Store, runs
from flows.cli import resume


@pytest.mark.parametrize(
    "command",
    [
        lambda url: resume("train-1", store=url),
        lambda url: print_evaluation(url, "train-1", None, None, None, False, beforehand=print),
        lambda url: print_replay(url, "train-1", 1, 0, check=True, output=None, as_json=False),
        lambda url: fork_run(url, "train-1", 0, "other", []),
    ],
    ids=["resume", "evaluate", "replay", "fork"],
)
def test_a_run_of_a_script_is_no_run_of_a_run_file(tmp_path: Path, command: Callable[[str], object]) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    runs.create_run(store, "train-1", {"model": "someone/model", "learning_rate": 1e-5}, "hash", str(tmp_path))
    with pytest.raises(BadInput, match=r"run 'train-1' was started by a script.*resume_from_checkpoint=True"):
        command(store.url)
    store.close()
