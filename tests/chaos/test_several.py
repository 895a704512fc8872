"""Two workers and a trainer of two ranks, killed in turn: one ledger, nothing lost, the weights are the ledger's."""

from pathlib import Path

import pytest
import yaml

from agrpo.session.replays import replay_run
from agrpo.store import processes, runs, steps
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun

NUM_STEPS = 12


@pytest.mark.long
def test_two_workers_and_two_ranks_go_on_from_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KillRun(tmp_path, max_steps=NUM_STEPS, ranks=2) as run:
        described = yaml.safe_load((tmp_path / "run.yaml").read_text())
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({**described, "workers": {"count": 2}}))
        run.start()
        for victim, step in (("worker", 2), ("trainer", 5)):
            run.wait(f"step {step}", lambda step=step: run.step() >= step)
            run.note_finished()
            run.kill(victim)
        run.wait("the end", lambda: run.launcher is not None and run.launcher.poll() == 0)
        assert runs.get_run(run.store, NAME).step == NUM_STEPS, run.log()
        assert run.lost_groups() == [] and verify(run.store, NAME).problems == []
        seen = processes.all(run.store, NAME)
        assert {record.index for record in seen if record.kind == "worker"} == {0, 1}
        ranks = {row.rank for step in range(1, NUM_STEPS + 1) for row in steps.rows(run.store, NAME, step)}
        assert ranks == {0, 1}
        monkeypatch.chdir(tmp_path)
        again = replay_run(run.store, NAME, NUM_STEPS)
        assert (again.verdict, again.first_difference) == ("equal", None)
