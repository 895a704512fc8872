"""What a session finds when it begins: real processes that an earlier attempt left, and nobody to end them."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agrpo.errors import Outage, RunStopped
from agrpo.evaluation.due import name_in_training
from agrpo.launch.attach import attach
from agrpo.launch.child import ChildSpec
from agrpo.launch.supervisor import read_stat
from agrpo.runfile import RunFile, config_hash, parse, stored_config
from agrpo.session import specs
from agrpo.session.placement import placement
from agrpo.session.session import Session
from agrpo.settings import EvaluationSettings
from agrpo.store import Attempt, Store, evaluations, events, leases, policies, processes, runs, servers
from agrpo.store.processes import Kind
from tests.worlds.processes import eventually, is_running

URL = "http://127.0.0.1:9"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFile:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = {"name": "x", "model": {"path": "m"}, "data": {"rows": "a:b"}, "rewards": ["a:b"]}
    return parse({**given, "output": str(tmp_path / "runs")}, "test")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def left() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Three processes that do nothing, each in a group of its own."""
    started = [subprocess.Popen(["sleep", "300"], start_new_session=True) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def begin(run: RunFile, store: Store) -> Attempt:
    attempt = attach(store, run.name, stored_config(run), config_hash(run), run.run_dir).attempt
    assert attempt is not None
    return attempt


def register(
    attempt: Attempt, kind: Kind, process: "subprocess.Popen[bytes]", settings_hash: str | None = None
) -> None:
    stat, pid = read_stat(process.pid), process.pid
    assert stat is not None
    url = None if settings_hash is None else URL
    processes.register(attempt, kind, 0, pid, pid, stat.started, "log", settings_hash, url)


def test_what_an_earlier_attempt_left_is_ended_before_anything_starts(
    run: RunFile, store: Store, left: list["subprocess.Popen[bytes]"]
) -> None:
    """Fault 17, with supervisors that were killed too. Only a server that would be started again as it is may stay."""
    worker, other, fitting = left
    first = begin(run, store)
    register(first, "worker", worker)
    register(first, "server", other, "other settings")
    register(first, "server", fitting, specs.server(run, 0, placement(run)).settings_hash)
    leases.release(first, "failed")
    with Session(run, begin(run, store)):
        assert not is_running(worker.pid) and not is_running(other.pid)
        assert is_running(fitting.pid)
        assert [record.pid for record in processes.live(store, run.name)] == [fitting.pid]


@pytest.fixture
def idle(tmp_path: Path) -> str:
    """An interpreter that runs no server, whatever it is asked."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexec sleep 300\n")
    path.chmod(0o755)
    return str(path)


def with_servers(run: RunFile, **settings: Any) -> RunFile:
    return run.model_copy(update={"servers": run.servers.model_copy(update=settings)})


@pytest.mark.parametrize("given", [True, False], ids=["by url", "started"])
def test_a_stop_is_obeyed_while_a_server_starts(run: RunFile, store: Store, idle: str, given: bool) -> None:
    run = with_servers(run, urls=[URL]) if given else with_servers(run, python=idle, orphan_grace_s=0.0)
    with pytest.raises(RunStopped), Session(run, begin(run, store)) as session:
        session.start_server(0)
        runs.request(store, run.name, "stop")
        session.wait_healthy(0)
    assert runs.get_run(store, run.name).status == "stopped"
    assert processes.live(store, run.name) == []


@pytest.fixture(params=[("sleep 300", 0)])
def evaluating(
    request: pytest.FixtureRequest, run: RunFile, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Session, Attempt]]:
    """A session whose training has ended at step 4, the evaluation of which takes for ever."""
    line, limit = request.param
    run = with_servers(run, urls=[URL])
    run = run.model_copy(update={"evaluation": EvaluationSettings(steps=2)})
    command = ("sh", "-c", line)
    sleeper = ChildSpec(
        "evaluator", 0, command, Path("evaluator.log"), restart_limit=limit, backoff_s=0.01, optional=True
    )
    monkeypatch.setattr(specs, "evaluator", lambda run, attempt: sleeper)
    attempt = begin(run, store)
    policies.publish(attempt, 0, 4, "digest")
    with Session(run, attempt) as session:
        session.start_server(0)
        [server] = servers.servers(store, run.name)
        servers.confirm_version(attempt, server.id, 0)
        session.start_evaluator()
        yield session, attempt


def test_the_last_evaluation_is_waited_for_and_a_stop_meanwhile_is_obeyed(
    evaluating: tuple[Session, Attempt], store: Store
) -> None:
    session, attempt = evaluating
    runs.request(store, attempt.run_id, "stop")
    with pytest.raises(RunStopped):
        session.wait_for_evaluation()
    number = evaluations.begin(store, attempt.run_id, 4, name_in_training(attempt.run_id, 4), "tasks")
    evaluations.finish(store, number, {})
    session.wait_for_evaluation()


@pytest.mark.parametrize("evaluating", [("exit 75", 1000)], indirect=True)
def test_an_evaluator_that_begins_again_and_again_is_not_waited_for(evaluating: tuple[Session, Attempt]) -> None:
    session, _ = evaluating
    session.wait_for_evaluation()


@pytest.mark.parametrize("lost", ["evaluator", "weights"])
def test_an_evaluation_that_nobody_can_make_is_not_waited_for(
    evaluating: tuple[Session, Attempt], store: Store, lost: str
) -> None:
    session, attempt = evaluating
    if lost == "weights":
        [server] = servers.servers(store, attempt.run_id)
        servers.doubt(attempt, server.id)
    else:
        [evaluator] = processes.live(store, attempt.run_id)
        os.kill(evaluator.pid, signal.SIGKILL)
    session.wait_for_evaluation()


def test_nobody_at_a_given_url_is_said_soon_and_ends_in_one_line(
    run: RunFile, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agrpo.session.session._SOON_S", 0.1)
    run = with_servers(run, urls=[URL], start_timeout_s=1.0)
    told = f"nobody answered at {URL} for 1 s: start that server, or mend servers.urls"
    with pytest.raises(Outage, match=told), Session(run, begin(run, store)) as session:
        session.start_server(0)
        session.wait_healthy(0)
    phases = [event.message for event in events.events(store, run.name) if event.kind == "phase"]
    assert phases[0].startswith(f"nobody answers at {URL} yet")
    assert runs.get_run(store, run.name).status == "failed"


def test_an_interrupt_meanwhile_stops_the_run(run: RunFile, store: Store) -> None:
    """The process that was left presses Ctrl-C when it is told to end, and lives on."""
    before = set(threading.enumerate())
    script = "trap 'kill -INT $PPID' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(["bash", "-c", script], start_new_session=True, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None and stubborn.stdout.readline() == b"ready\n"
        first = begin(run, store)
        register(first, "worker", stubborn)
        leases.release(first, "failed")
        with pytest.raises(KeyboardInterrupt), Session(run, begin(run, store)):
            pytest.fail("it began")
        stubborn.kill()
    assert [attempt.outcome for attempt in leases.attempts(store, run.name)] == ["failed", "stopped"]
    eventually(lambda: set(threading.enumerate()) <= before)
