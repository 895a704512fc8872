"""The worker as a process of its own."""

import functools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agrpo import runfile
from agrpo.launch import exits
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.scoring import Scorer
from agrpo.rollout.worker import end_tokens, refuse_unpicklable, run_worker
from agrpo.store import events, groups, leases, processes, runs, samples, workers
from agrpo.tools.isolated import IsolatedTools
from tests.rollout.run_world import RunWorld, Varied, by_status, finished, length_reward, rows
from tests.worlds.processes import eventually, is_running
from tests.worlds.scripted_server import Answer, ScriptedServer
from tests.worlds.tiny_model import make_tokenizer

START_LIMIT_S = 120.0


def eight_rows() -> list[dict[str, Any]]:
    return rows(8)


def buggy_reward(completions: list[Any], **columns: Any) -> list[float]:
    raise ZeroDivisionError("no answers at all")


def run_file_world(folder: Path, server: ScriptedServer, reward: str = "length_reward") -> RunWorld:
    """A run whose stored settings name a tokenizer, rows and a reward of this file."""
    make_tokenizer().save_pretrained(folder / "model")
    here = "tests.rollout.test_worker"
    trainer = {"num_generations": 2, "num_train_epochs": 1, "max_completion_length": 8, "groups_per_step": 2}
    given = {
        "name": "run",
        "model": {"path": str(folder / "model")},
        "data": {"rows": f"{here}:eight_rows"},
        "rewards": [f"{here}:{reward}"],
        "trainer": trainer,
    }
    return RunWorld(folder, server, config=runfile.stored_config(runfile.parse(given, "test")))


def start(world: RunWorld, *before: str, process_id: str | None = None) -> subprocess.Popen[bytes]:
    arguments = ["--store", world.url, "--run", "run", "--token", str(world.attempt.token)]
    arguments += ["--process-id", process_id or str(world.process_id)]
    command = [*before, sys.executable, "-m", "agrpo.rollout.worker", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def stand_by(world: RunWorld) -> subprocess.Popen[bytes]:
    """A worker that loads now and works when it is told its id."""
    return start(world, process_id="-")


def test_a_killed_worker_loses_only_what_was_in_flight_and_a_lost_lease_ends_the_next(
    tmp_path: Path, server: ScriptedServer
) -> None:
    """Fault 4."""
    quick, hanging = Varied(), Varied(after_s=60.0)
    late = [make_tokenizer().encode(digit, add_special_tokens=False)[0] for digit in "4567"]
    server.script = lambda prompt, params, n: (hanging if set(late) & set(prompt) else quick)(prompt, params, n)
    world = run_file_world(tmp_path, server)
    worker = start(world)
    waiting = stand_by(world)
    eventually(lambda: finished(world, 4) and len(server.requests) > 8, START_LIMIT_S)
    worker.kill()
    worker.communicate()
    kept = samples.pending(world.store, "run")
    processes.ended(world.attempt, world.process_id, -9, "killed")

    server.script = quick
    world.process_id = world.register_worker(1)
    worker = waiting
    assert worker.stdin is not None and worker.poll() is None
    worker.stdin.write(f"{world.process_id}\n".encode())
    worker.stdin.flush()
    eventually(lambda: finished(world, 8), START_LIMIT_S)
    assert by_status(world) == {"ready": 8}
    assert samples.pending(world.store, "run")[: len(kept)] == kept

    leases.release(world.attempt, "stopped")
    leases.acquire(world.store, "run", leases.this_process())
    _, said = worker.communicate(timeout=30)
    assert worker.returncode == exits.LEASE_LOST, said.decode()


def test_a_bug_ends_the_worker_with_its_traceback_and_input(tmp_path: Path, server: ScriptedServer) -> None:
    world = run_file_world(tmp_path, server, "buggy_reward")
    worker = start(world)
    _, said = worker.communicate(timeout=START_LIMIT_S)
    assert worker.returncode == exits.BUG
    assert "ZeroDivisionError: no answers at all" in said.decode()
    assert "in reward function 'buggy_reward' for row 0" in said.decode()
    (event,) = [event for event in events.events(world.store, "run") if event.kind == "worker_failed"]
    assert event.message == "ZeroDivisionError: no answers at all"
    assert "buggy_reward" in event.detail["traceback"]


def test_a_worker_ends_with_its_parent(tmp_path: Path, server: ScriptedServer) -> None:
    server.script = lambda prompt, params, n: Answer(after_s=60.0)
    world = run_file_world(tmp_path, server)
    parent = start(world, "sh", "-c", '"$@" & echo $! > "$0"; wait', str(tmp_path / "pid"))
    eventually(lambda: server.requests, START_LIMIT_S)
    pid = int((tmp_path / "pid").read_text())
    parent.kill()
    eventually(lambda: not is_running(pid), 30.0)


class Marked(AsyncRolloutLoop):
    """Leaves a trace of its hooks in the folder of the run."""

    async def setup(self) -> None:
        self.trace = Path(self.config.output_dir or "") / "trace"
        self.trace.write_text("opened")

    async def close(self) -> None:
        self.trace.write_text("closed")


def test_a_spawned_worker_runs_a_subclass_of_the_loop_and_stops_when_told(
    tmp_path: Path, server: ScriptedServer
) -> None:
    world = RunWorld(tmp_path, server)
    spec = world.spec(rows(3), [functools.partial(length_reward)], Marked)
    refuse_unpicklable(spec)
    target = functools.partial(run_worker, spec, world.process_id)
    worker = multiprocessing.get_context("spawn").Process(target=target)
    worker.start()
    eventually(lambda: finished(world, 3), START_LIMIT_S)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGTERM)
    worker.join(30)
    assert worker.exitcode == exits.STOPPED
    assert (tmp_path / "trace").read_text() == "closed"
    assert len(groups.groups(world.store, "run")) == 3
    assert runs.get_run(world.store, "run").status == "created"


def test_what_cannot_reach_the_worker_is_named(tmp_path: Path, server: ScriptedServer) -> None:
    world = RunWorld(tmp_path, server)
    with pytest.raises(TypeError, match=r"reward function <function .*lambda.* define it at module level"):
        refuse_unpicklable(world.spec(rows(1), [lambda completions, **columns: [0.0]]))
    spec = world.spec(rows(1))
    assert pickle.loads(pickle.dumps(spec)).reward_funcs == (length_reward,)


def test_every_end_token_of_the_model_counts(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert end_tokens(str(tmp_path), tokenizer) == (1,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert end_tokens(str(tmp_path), tokenizer) == (1, 2, 7)


def test_end_tokens_are_those_of_the_revision(tmp_path: Path) -> None:
    hub = tmp_path / "hub" / "models--org--model"
    for revision, end in (("main", 5), ("v2", 6)):
        snapshot = hub / "snapshots" / f"commit-{revision}"
        snapshot.mkdir(parents=True)
        (snapshot / "generation_config.json").write_text(f'{{"eos_token_id": {end}}}')
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / revision).write_text(f"commit-{revision}")
    program = (
        "from agrpo.rollout.worker import end_tokens; from tests.worlds.tiny_model import make_tokenizer\n"
        "print(*(end_tokens('org/model', make_tokenizer(), revision) for revision in (None, 'v2')))"
    )
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    env.pop("HF_HUB_CACHE", None)
    assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True).strip() == "(1, 5) (1, 6)"


def test_a_worker_that_is_to_leave_finishes_what_it_has_begun(tmp_path: Path, server: ScriptedServer) -> None:
    server.script = Varied(after_s=0.3)
    world = RunWorld(tmp_path, server, {"max_concurrent_rollouts": 4})
    told = False

    def tell() -> bool:
        nonlocal told
        if not told and server.requests:
            os.kill(os.getpid(), exits.LEAVE_SIGNAL)
            told = True
        return False  # it ends by itself

    world.run(world.spec(rows(30)), tell)
    found = groups.groups(world.store, "run")
    assert 0 < len(found) < 30 and {group.status for group in found} == {"ready"}
    (said,) = workers.states(world.store, "run")
    assert said.in_flight == 0 and said.admission_open  # whoever comes next goes on: no reason to train a small step


def test_the_store_is_done_with_first_and_a_part_that_cannot_be_closed_keeps_no_other_open(
    tmp_path: Path, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    open_then: list[list[threading.Thread]] = []

    def store_threads() -> list[threading.Thread]:
        return [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("store_")]

    def stuck(part: Scorer | IsolatedTools) -> None:
        open_then.append(store_threads())
        raise OSError("a process cannot be ended")

    monkeypatch.setattr(IsolatedTools, "close", stuck)
    monkeypatch.setattr(Scorer, "close", stuck)
    world = RunWorld(tmp_path, server)
    with pytest.raises(OSError, match="a process cannot be ended"):
        world.run(world.spec(rows(2)), lambda: finished(world, 1) and bool(store_threads()))
    assert open_then == [[], []] and store_threads() == []
