import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from agrpo.errors import StoreError, StoreOutage
from agrpo.store import Store, command, runs, sqlite
from agrpo.store.store import REVISIONS, VERSION_TABLE

MOUNTS = """/dev/vda / ext4 rw 0 0
server:/export /home nfs4 rw 0 0
/dev/vdb /home/scratch\\040disk xfs rw 0 0
"""


def migrate(url: str) -> str:
    store = Store.open(url)
    store.migrate()
    runs.list_runs(store)
    store.close()
    return "migrated"


def test_many_processes_may_migrate_at_once(databases, backend):
    url = databases.empty(backend)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(migrate, [url] * 8) == ["migrated"] * 8


def test_many_threads_may_open_a_file_that_does_not_exist_yet(tmp_path):
    for attempt in range(5):
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(migrate, [f"sqlite:///{tmp_path}/{attempt}.db"] * 8)) == {"migrated"}


def test_an_unmigrated_database_is_one_clear_error(databases, backend):
    store = Store.open(databases.empty(backend))
    with pytest.raises(StoreError, match=f"schema None, expected '{REVISIONS[-1]}': agrpo resume"):
        runs.list_runs(store)
    store.migrate()
    assert runs.list_runs(store) == []


def test_a_newer_schema_is_refused(databases, backend):
    store = Store.open(databases.empty(backend))
    store.migrate()
    with store.write_unchecked() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(
        StoreError, match=f"schema '9999' and this code knows up to '{REVISIONS[-1]}': install a newer agrpo"
    ):
        runs.list_runs(store)


@pytest.mark.parametrize("backend", ["postgresql"])
def test_the_options_of_a_url_are_kept_beside_our_own(url, backend):
    with_options = make_url(url).update_query_dict({"options": "-csearch_path=agrpo,public"})
    store = Store.open(with_options.render_as_string(hide_password=False))
    with store.read() as connection:
        assert connection.execute(text("SHOW search_path")).scalar() == "agrpo,public"
        assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar() == "30s"
    store.close()


def test_migrating_again_keeps_the_rows(store):
    runs.create_run(store, "kept", {}, "hash", "runs/kept")
    store.migrate()
    assert runs.get_run(store, "kept").run_id == "kept"


def test_a_write_that_raises_leaves_nothing(store):
    runs.create_run(store, "kept", {}, "hash", "runs/kept")
    with pytest.raises(RuntimeError, match="half way"), store.write() as connection:
        connection.execute(text("DELETE FROM runs"))
        raise RuntimeError("half way")
    assert [run.run_id for run in runs.list_runs(store)] == ["kept"]


def test_a_read_sees_one_state(store):
    runs.create_run(store, "first", {}, "hash", "d")
    count = text("SELECT count(*) FROM runs")
    with store.read() as connection:
        before = connection.execute(count).scalar()
        runs.create_run(store, "second", {}, "hash", "d")
        assert (before, connection.execute(count).scalar()) == (1, 1)


def test_nan_and_control_characters_survive_json(store):
    config = {"nan": float("nan"), "deep": [{"inf": float("-inf")}], "text": "a\u0000b\ud800", "one": 1.5}
    runs.create_run(store, "odd", config, "hash", "d")
    expected = {"nan": "nan", "deep": [{"inf": "-inf"}], "text": "a\u0000b\ud800", "one": 1.5}
    assert runs.get_run(store, "odd").config == expected
    json.dumps(runs.get_run(store, "odd").config, allow_nan=False)


def test_the_folder_of_a_new_file_is_made_unless_it_must_exist(tmp_path):
    url = f"sqlite:///{tmp_path}/deep/folder/agrpo.db"
    with pytest.raises(StoreError, match="there is no database"):
        Store.open(url, create=False)
    Store.open(url).migrate()
    assert runs.list_runs(Store.open(url, create=False)) == []


def test_sqlite_is_set_up_to_survive_power_loss(tmp_path):
    store = Store.open(f"sqlite:///{tmp_path}/agrpo.db")
    store.migrate()
    with store.read() as connection:
        values = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert values == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("no url", "no database URL"),
        ("sqlite://", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
        ("mysql://localhost/agrpo", "only sqlite and postgresql"),
    ],
)
def test_a_url_that_cannot_hold_runs_is_refused(url, words):
    with pytest.raises(StoreError, match=words):
        Store.open(url)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/me/agrpo.db", "nfs4"), ("/home/scratch disk/agrpo.db", None), ("/tmp/agrpo.db", None), ("/homes/a", None)],
)
def test_a_network_file_system_is_recognised(path, kind):
    assert sqlite.network_file_system(Path(path), MOUNTS) == kind


def test_a_database_that_is_away_is_an_outage_without_its_password():
    store = Store.open("postgresql://me:secret@/agrpo?host=/nowhere")
    with pytest.raises(StoreOutage, match="did not answer") as caught:
        runs.list_runs(store)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "variable", "written"),
    [
        ("sqlite:///runs/agrpo.db", "", "agrpo resume x"),
        ("sqlite:////tmp/my runs.db", "", "agrpo resume x --store 'sqlite:////tmp/my runs.db'"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db", "agrpo resume x --store sqlite:////tmp/a.db"),
        ("postgresql://me:secret@db/a", "", "agrpo resume x --store 'postgresql://me:***@db/a'"),
        ("postgresql://me:secret@db/a", "postgresql://me:secret@db/a", "agrpo resume x"),
    ],
)
def test_a_command_leads_to_its_store_and_tells_no_password(monkeypatch, url, variable, written):
    monkeypatch.setenv("AGRPO_DATABASE_URL", variable)
    assert command("resume x", url) == written


def test_a_frozen_process_that_holds_a_sqlite_file_is_spoken_of(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/agrpo.db"
    holder = Store.open(url)
    holder.migrate()
    monkeypatch.setattr(sqlite, "PRAGMAS", ("PRAGMA busy_timeout = 20",))
    store = Store.open(url)
    with holder.write(), pytest.raises(StoreOutage, match=r"is held by another .* frozen one .*database is locked"):
        runs.create_run(store, "late", {}, "hash", str(tmp_path))
    store.close()
    holder.close()


def test_asking_whether_a_place_will_do_does_not_end_the_locks_of_this_process(tmp_path):
    """Or the next process that closes the database deletes the write-ahead log that this one still writes."""
    url = f"sqlite:///{tmp_path}/agrpo.db"
    store = Store.open(url)
    store.migrate()
    runs.list_runs(store)
    Store.check_place(url)
    with multiprocessing.get_context("spawn").Pool(1) as other:
        other.apply(migrate, [url])
    assert (tmp_path / "agrpo.db-wal").exists()
    runs.create_run(store, "late", {}, "hash", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(1) as other:
        assert other.apply(run_names, [url]) == ["late"]
    store.close()


def run_names(url: str) -> list[str]:
    store = Store.open(url)
    names = [run.run_id for run in runs.list_runs(store)]
    store.close()
    return names
