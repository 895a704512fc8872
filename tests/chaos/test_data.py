"""Data that changed under a run: its worker refuses, in words that say how to go on, and so it goes on."""

from pathlib import Path

import pytest

import flows.cli
from agrpo.launch import exits
from agrpo.store import groups, leases, runs, streams
from agrpo.store.streams import StreamPosition
from tests.rollout.run_world import Varied, finished
from tests.rollout.test_worker import run_file_world, start
from tests.worlds.processes import eventually
from tests.worlds.scripted_server import ScriptedServer

LIMIT_S = 240.0


@pytest.mark.long
def test_changed_data_is_refused_until_a_person_accepts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Varied()) as server:
        world = run_file_world(tmp_path, server)
        runs.check_data(world.attempt, "9 rows, of before")
        groups.claim(world.attempt, world.process_id, 0, 0, [StreamPosition(256, None, "of before")])
        refused = start(world)
        _, said = refused.communicate(timeout=LIMIT_S)
        assert refused.returncode == exits.BAD_INPUT
        (line,) = [line for line in said.decode().splitlines() if line.startswith(exits.REFUSAL)]
        assert "9 rows, of before then, 8 rows" in line and line.endswith(f"--accept-new-data --store {world.url}")

        leases.release(world.attempt, "stopped")  # while somebody runs it, nothing is accepted
        monkeypatch.setattr(flows.cli, "_run", lambda settings, as_json, go_on: 0)
        assert flows.cli.resume("run", accept_new_data=True, store=world.url) == 0
        assert streams.positions(world.store, "run") == []
        accepted = start(world)
        eventually(lambda: finished(world, 8), LIMIT_S)
        accepted.terminate()
        accepted.communicate(timeout=LIMIT_S)
        assert accepted.returncode == exits.STOPPED
        assert (runs.get_run(world.store, "run").data_fingerprint or "").startswith("8 rows")
