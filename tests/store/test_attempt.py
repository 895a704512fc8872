import threading
import typing
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, insert, select

from agrpo.errors import LeaseLost
from agrpo.store import (
    Attempt,
    checkpoints,
    drafts,
    evaluations,
    events,
    groups,
    leases,
    metrics,
    policies,
    processes,
    pruning,
    runs,
    samples,
    schema,
    servers,
    steps,
    workers,
)
from agrpo.store.schema import metadata
from tests.worlds.small_groups import DEAD, generate, group, turn

WRITES = {
    "runs.set_status": lambda a, c: runs.set_status(a, "running"),
    "runs.set_config": lambda a, c: runs.set_config(a, {}, "hash"),
    "runs.set_environment": lambda a, c: runs.set_environment(a, {}),
    "runs.check_data": lambda a, c: runs.check_data(a, "3 rows"),
    "runs.request_of": lambda a, c: runs.request_of(a, "stop"),
    "runs.set_allowance": lambda a, c: runs.set_allowance(a, 1, 2),
    "leases.renew": lambda a, c: leases.renew(a),
    "leases.release": lambda a, c: leases.release(a, "stopped"),
    "processes.register": lambda a, c: processes.register(a, "worker", 0, 1, 1, 1, "log"),
    "processes.ended": lambda a, c: processes.ended(a, 1, 0, "done"),
    "processes.adopt": lambda a, c: processes.adopt(a, 1),
    "processes.beat": lambda a, c: processes.beat(a, "worker", 0, "main"),
    "servers.register": lambda a, c: servers.register(a, "http://127.0.0.1:2", 1),
    "servers.forget_given": lambda a, c: servers.forget_given(a, "http://127.0.0.1:2"),
    "servers.confirm_version": lambda a, c: servers.confirm_version(a, 1, 0),
    "servers.doubt": lambda a, c: servers.doubt(a, 1),
    "servers.set_state": lambda a, c: servers.set_state(a, 1, "lost"),
    "policies.publish": lambda a, c: policies.publish(a, 0, 0, "digest"),
    "groups.claim": lambda a, c: groups.claim(a, 1, 1),
    "groups.commit": lambda a, c: groups.commit(a, group(c)),
    "groups.skip": lambda a, c: groups.skip(a, c.group_id, "filtered"),
    "drafts.add": lambda a, c: drafts.add(a, [drafts.NewTurn(c.group_id, 0, 0, 0, None, turn([1], [2]))]),
    "drafts.discard": lambda a, c: drafts.discard(a, c.group_id),
    "samples.drop": lambda a, c: samples.drop(a, [1], "stale"),
    "steps.record": lambda a, c: steps.record(a, 2, [steps.StepRow(0, 0, 0, 2)], 0),
    "steps.finish": lambda a, c: steps.finish(a, 1, "digest", {}),
    "checkpoints.place": lambda a, c: checkpoints.place(a, 1, "path", 0, lambda: "digest"),
    "checkpoints.while_owned": lambda a, c: checkpoints.while_owned(a, lambda cursor, named: None),
    "checkpoints.fall_back": lambda a, c: checkpoints.fall_back(a, 1),
    "checkpoints.forget": lambda a, c: checkpoints.forget(a, 1),
    "metrics.log": lambda a, c: metrics.log(a, 1, {"reward": 1.0}),
    "metrics.window": lambda a, c: metrics.window(a, "worker", 0, {}),
    "metrics.forget_windows": lambda a, c: metrics.forget_windows(a, 1),
    "evaluations.begin": lambda a, c: evaluations.begin(a, a.run_id, 1, "model", "tasks"),
    "evaluations.add": lambda a, c: evaluations.add(a, 1, [evaluations.ScoredAnswer(0, 0, [], {}, 1.0)]),
    "evaluations.finish": lambda a, c: evaluations.finish(a, 1, {}),
    "pruning.prune": lambda a, c: pruning.prune(a, "none"),
    "events.add": lambda a, c: events.add(a, "word", "line"),
    "workers.state": lambda a, c: workers.state(a, 1, 0, True, False, 0),
}


def everything(store):
    with store.read() as connection:
        return {table.name: connection.execute(select(table)).all() for table in metadata.sorted_tables}


def test_an_old_token_writes_nothing_after_a_takeover(store, attempt, worker):
    generate(attempt, worker, 1)
    claim = groups.claim(attempt, worker, 1)[0]
    servers.register(attempt, "http://127.0.0.1:1", 0, worker)
    first, _ = samples.pending(store, attempt.run_id)
    steps.record(attempt, 1, [steps.StepRow(0, 0, 0, first.sample_id)], 0)
    leases.acquire(store, attempt.run_id, DEAD)
    before = everything(store)
    for name, write in WRITES.items():
        with pytest.raises(LeaseLost, match="belongs to attempt 2, this process to attempt 1"):
            write(attempt, claim)
        assert everything(store) == before, name


def test_every_public_write_is_fenced():
    modules = (
        checkpoints,
        drafts,
        evaluations,
        events,
        groups,
        leases,
        metrics,
        policies,
        processes,
        runs,
        samples,
        servers,
        steps,
        pruning,
    )
    taking_an_attempt = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (*modules, workers)
        for name, value in vars(module).items()
        if not name.startswith("_") and Attempt in _kinds_of_first(value)
    }
    inside_a_transaction = {"events.note"}
    assert taking_an_attempt - inside_a_transaction == set(WRITES)


def _kinds_of_first(function: object) -> tuple[object, ...]:
    first = next(iter(getattr(function, "__annotations__", {}).values()), None)
    return typing.get_args(first) or (first,)


def test_a_run_that_is_not_there_is_lost(store):
    with pytest.raises(LeaseLost, match="belongs to attempt None"):
        events.add(Attempt(store, "nobody", 1), "word", "line")


def test_a_takeover_waits_for_a_write_under_way(store, attempt):
    """The write is whole before the new attempt starts, so that the new attempt sees it."""
    inside, proceed = threading.Event(), threading.Event()
    event = {"run_id": attempt.run_id, "token": 1, "at": 0.0, "kind": "k", "message": "m", "detail": {}}

    def write() -> None:
        with attempt.write() as connection:
            inside.set()
            assert proceed.wait(10)
            connection.execute(insert(schema.run_events).values(**event))

    def take_over() -> int:
        leases.acquire(store, attempt.run_id, DEAD)
        with store.read() as connection:
            return connection.execute(select(func.count()).select_from(schema.run_events)).scalar_one()

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write)
        assert inside.wait(10)
        taking = pool.submit(take_over)
        with pytest.raises(TimeoutError):
            taking.result(timeout=0.3)
        proceed.set()
        writing.result(10)
        assert taking.result(10) == 1
