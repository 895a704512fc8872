"""Ranks under torchrun end as they say, not as torchrun does."""

import sys
from pathlib import Path

import pytest

from agrpo.errors import BadInput, ChildFailed
from agrpo.launch import exits, farewell
from agrpo.launch.child import ChildSpec
from agrpo.launch.farewell import Farewell
from agrpo.launch.launcher import Launcher
from agrpo.store import Store, processes
from tests.worlds.processes import wait_for

RANK = """
import os, sys, time
from agrpo.errors import BadInput
from agrpo.launch import exits
def main():
    if os.environ.get("RANK", "1") == "1":
        {body}
    time.sleep(60)
exits.run(main)
"""


def ranks(folder: Path, body: str, *launch: str) -> ChildSpec:
    """A trainer whose rank 1 does something, under torchrun or what stands for it."""
    (folder / "rank.py").write_text(RANK.format(body=body))
    return ChildSpec("trainer", 0, (*launch, str(folder / "rank.py")), Path("trainer.log"), backoff_s=0.05)


def under_a_shell() -> tuple[str, ...]:
    """Ends with 1 whatever its command ends with, and talks a lot afterwards, as torchrun does."""
    return ("sh", "-c", f'{sys.executable} "$0"; seq 100; exit 1')


def test_a_bug_of_one_rank_under_torchrun_stops_the_run_with_its_traceback(
    launcher: Launcher, store: Store, tmp_path: Path
) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launcher.start(ranks(tmp_path, 'raise ZeroDivisionError("in rank 1")', *torchrun))
    with pytest.raises(ChildFailed, match=r"trainer 0 ended with exit code 70 \(a bug\); what it said") as failure:
        wait_for(launcher, "trainer", within_s=120)
    assert "Traceback" in str(failure.value) and str(failure.value).endswith("ZeroDivisionError: in rank 1")
    (record,) = processes.all(store, "r1")
    assert record.exit_code == exits.BUG


def test_what_a_rank_cannot_use_is_refused_at_once(launcher: Launcher, tmp_path: Path) -> None:
    launcher.start(ranks(tmp_path, 'raise BadInput("no such column")', *under_a_shell()))
    with pytest.raises(BadInput, match=r"^trainer 0: no such column$"):
        wait_for(launcher, "trainer", within_s=60)
    assert launcher.children()[0].restarts == 0


def test_what_says_nothing_is_started_again_and_old_words_are_forgotten(launcher: Launcher, tmp_path: Path) -> None:
    first = str(tmp_path / "first")
    body = f"""
        if os.path.exists({first!r}):
            os._exit(9)
        open({first!r}, "w").close()
        exits.leave(exits.OUTAGE, "outage: away for now")
    """
    launcher.start(ranks(tmp_path, body, *under_a_shell()))
    with pytest.raises(ChildFailed, match="exit code 1 after 3 restarts; the end of its log"):
        wait_for(launcher, "trainer", within_s=60)
    codes = [record.exit_code for record in processes.all(launcher.attempt.store, "r1")]
    assert codes == [exits.OUTAGE, 1, 1, 1]


def test_the_first_to_go_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "trainer.log"
    monkeypatch.setenv(farewell.VARIABLE, str(farewell.path_for(log)))
    assert farewell.read(log) is None
    farewell.leave(Farewell(exits.OUTAGE, "outage: the database"))
    farewell.leave(Farewell(exits.BUG, "lost the other rank"))
    assert farewell.read(log) == Farewell(exits.OUTAGE, "outage: the database")
    assert [path.name for path in tmp_path.iterdir()] == ["trainer.log.farewell"]
    farewell.forget(log)
    assert farewell.read(log) is None
