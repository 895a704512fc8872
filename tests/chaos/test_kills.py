"""Real processes, killed at random times: nothing is lost, nothing trained twice, and the weights are the ledger's."""

import json
import time
from pathlib import Path
from random import Random

import pytest

from agrpo.session.replays import replay_run
from agrpo.store import groups, runs
from agrpo.store.verify import verify
from tests.worlds.kill_run import NAME, KillRun

NUM_KILLS = 20
NUM_STEPS = 30


def test_twenty_kills_at_random_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random, killed = Random(4), []
    with KillRun(tmp_path, max_steps=NUM_STEPS) as run:
        run.start()
        run.wait("the first process", lambda: bool(run.alive()))
        seen: dict[int, tuple[str, int | None]] = {}
        for _ in range(NUM_KILLS):
            until = time.monotonic() + random.uniform(0.2, 6.0)
            run.wait("the next kill", lambda until=until: time.monotonic() > until)
            # What is finished now must be there in the end, in the same place.
            seen |= {g.id: (g.status, g.ready_order) for g in groups.groups(run.store, NAME) if g.ready_order}
            killed.append(run.kill_one(random))
        run.wait("the end", lambda: run.launcher is not None and run.launcher.poll() == 0, limit_s=240)
        assert (runs.get_run(run.store, NAME).status, run.step()) == ("finished", NUM_STEPS), run.log()
        print(f"killed: {', '.join(killed)}")
        found = {g.id: (g.status, g.ready_order) for g in groups.groups(run.store, NAME)}
        lost = [id for id, (_, order) in seen.items() if found[id][1] != order]
        assert lost == []
        assert verify(run.store, NAME).problems == []
        monkeypatch.chdir(tmp_path)
        again = replay_run(run.store, NAME, NUM_STEPS)
        assert (again.verdict, len(again.checks)) == ("equal", NUM_STEPS), json.dumps(str(again.first_difference))
