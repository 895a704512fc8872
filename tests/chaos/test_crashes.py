"""A crash in every single write of a run, before and after its commit; then the run is resumed to its end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agrpo.store import checkpoints, groups, runs, samples
from agrpo.store.verify import verify
from tests.chaos.miniature import RUN, Crash, CrashingStore, ledger_weights, live, open_store
from tests.worlds.databases import Databases

Fresh = Callable[[], str]
"""Gives the URL of a migrated database without rows; the one before it is over."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def fresh(request: pytest.FixtureRequest, memory: Path) -> Iterator[Fresh]:
    databases = Databases(memory)
    yield lambda: databases.migrated(request.param)
    databases.stop()


def test_the_undisturbed_run_goes_through_every_status(memory: Path, fresh: Fresh) -> None:
    store = open_store(fresh())
    weights = live(store, memory)
    assert runs.get_run(store, RUN).status == "finished"
    assert [(g.status, g.drop_reason) for g in groups.groups(store, RUN)] == [
        ("trained", None),
        ("dropped", "too_long"),
        ("dropped", "no_signal"),
        *[("trained", None)] * 3,
        ("dropped", None),
        ("trained", None),
    ]
    counts = runs.summary(store, RUN).samples
    assert counts == {"trained": 11, "dropped": 4}
    assert (weights, verify(store, RUN).problems) == (ledger_weights(store), [])
    store.close()


@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_a_crash_in_any_write_loses_nothing_and_trains_nothing_twice(
    memory: Path, fresh: Fresh, committed: bool
) -> None:
    crash_at, crashed = 0, True
    while crashed:
        crash_at += 1
        folder, url = memory / f"checkpoints-{crash_at}", fresh()
        folder.mkdir()
        crashed = _crash(url, folder, crash_at, committed)
        _resume(url, folder)
    assert crash_at > 50


def _crash(url: str, folder: Path, crash_at: int, committed: bool) -> bool:
    """Live until the write; whether it was reached. What was finished by then is finished for good."""
    store = open_store(url, crash_at, committed)
    try:
        live(store, folder)
    except Crash:
        return True
    finally:
        store.close()
    return False


def _resume(url: str, folder: Path) -> None:
    store = open_store(url)
    finished = _finished(store)
    weights = live(store, folder) if not _is_over(store) else ledger_weights(store)
    problems = verify(store, RUN).problems
    assert problems == []
    assert weights == ledger_weights(store)
    assert {key: value for key, value in _finished(store).items() if key in finished} == finished
    assert samples.pending(store, RUN) == [] and groups.groups(store, RUN, "claimed") == []
    cursor = checkpoints.cursor(store, RUN)
    assert cursor is not None and (Path(cursor.path) / "weights").read_text() == weights
    store.close()


def _finished(store: CrashingStore) -> dict[int, int | None]:
    found = groups.groups(store, RUN) if runs.find_run(store, RUN) else []
    return {group.id: group.ready_order for group in found if group.status != "claimed"}


def _is_over(store: CrashingStore) -> bool:
    run = runs.find_run(store, RUN)
    return run is not None and run.status == "finished"
