"""Two workers on a stream, killed in every store call: every row of every pass once, in its place."""

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from agrpo.rollout.prompts import StreamPrompts
from agrpo.store import Attempt, Store, groups, leases, processes, runs, streams
from tests.chaos.miniature import Crash, migrate, open_store
from tests.rollout.test_streams import Silent, Stateful
from tests.worlds.small_groups import DEAD, group

RUN = "streamed"
NUM_ROWS = 8
NUM_EPOCHS = 2
AHEAD = 2


class Conversations(Stateful):
    """Prompts of one number."""

    def __deepcopy__(self, memo: object) -> "Conversations":
        return Conversations(self.num_rows, self.first)

    def __iter__(self) -> Iterator[dict[str, object]]:
        for row in super().__iter__():
            yield {"prompt": [{"role": "user", "content": str(row["number"])}]}


class Worker:
    """Claims up to three prompts a turn and answers those of the turn before."""

    def __init__(self, attempt: Attempt, index: int) -> None:
        self._attempt = attempt
        self._id = processes.register(attempt, "worker", index, 1, 1, 1, "log")
        self._prompts = StreamPrompts(Conversations(NUM_ROWS), NUM_EPOCHS, known=streams.positions(attempt.store, RUN))
        self._held: list[groups.Claim] = []

    def work(self) -> bool:
        """Whether there was anything to do."""
        wanted = runs.get_run(self._attempt.store, RUN).next_prompt_index + AHEAD
        stop = self._prompts.stop_index(wanted)
        claims = groups.claim(self._attempt, self._id, 3, stop, self._prompts.take_positions())
        for claim in self._held:
            prompt = self._prompts.prompt(claim.prompt_index)
            answer = group(claim)
            answer.prompt[0]["content"] = prompt.messages[0]["content"]
            groups.commit(self._attempt, answer)
        self._held, had = claims, self._held
        return bool(claims or had) or self._prompts.num_rows is None


def live(store: Store) -> None:
    if runs.find_run(store, RUN) is None:
        runs.create_run(store, RUN, {}, "hash", "runs", 10_000)
    attempt = leases.acquire(store, RUN, DEAD)
    workers = [Worker(attempt, index) for index in range(2)]
    busy = [True]
    while any(busy):
        busy = [worker.work() for worker in workers]


@pytest.fixture(autouse=True)
def close_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many positions in a few rows as otherwise in thousands."""
    monkeypatch.setattr("agrpo.rollout.streams.NUM_ROWS_BETWEEN", 3)
    monkeypatch.setattr("agrpo.rollout.streams.NUM_ROWS_COMPARED", 2)
    monkeypatch.setattr("agrpo.rollout.streams.NUM_ROWS_KEPT", 5)


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_killed_in_any_store_call_a_stream_has_neither_gap_nor_repeat(memory: Path, committed: bool) -> None:
    migrate(memory)
    for crash_at in count(1):
        folder = memory / str(crash_at)
        folder.mkdir()
        shutil.copy(memory / "agrpo.db", folder)
        store = open_store(f"sqlite:///{folder}/agrpo.db", crash_at, committed)
        try:
            live(store)
            break
        except Crash:
            store.close()
        again = open_store(f"sqlite:///{folder}/agrpo.db")
        live(again)
        check(again)
        again.close()
        shutil.rmtree(folder)
    check(store)
    store.close()
    assert crash_at > 20


def check(store: Store) -> None:
    found = groups.groups(store, RUN)
    assert [(one.prompt_index, one.status) for one in found] == [(i, "ready") for i in range(NUM_ROWS * NUM_EPOCHS)]
    with store.read() as connection:
        rows = connection.exec_driver_sql("SELECT prompt FROM groups ORDER BY prompt_index").scalars().all()
    assert [json.loads(row)[0]["content"] for row in rows] == [str(i % NUM_ROWS) for i in range(NUM_ROWS * NUM_EPOCHS)]
    assert streams.positions(store, RUN)[-1].row_index == NUM_ROWS


def test_a_resumed_worker_reads_from_the_last_position_and_not_from_the_beginning(memory: Path) -> None:
    migrate(memory)
    store = open_store(f"sqlite:///{memory}/agrpo.db")
    runs.create_run(store, RUN, {}, "hash", "runs")
    attempt = leases.acquire(store, RUN, DEAD)
    first = Worker(attempt, 0)
    while runs.get_run(store, RUN).next_prompt_index < NUM_ROWS - 2:
        first.work()
    again = StreamPrompts(Conversations(NUM_ROWS), NUM_EPOCHS, known=streams.positions(store, RUN))
    assert again.prompt(NUM_ROWS - 2).messages[0]["content"] == str(NUM_ROWS - 2)
    assert again.num_read == 4
    silent = StreamPrompts(Silent(NUM_ROWS), NUM_EPOCHS, needs_prompt=False)
    silent.prompt(NUM_ROWS - 2)
    assert silent.num_read == NUM_ROWS - 1
    store.close()
