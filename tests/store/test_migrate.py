import os
import subprocess
import sys
from importlib import resources

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Column, Double, ForeignKey, Index, Integer, MetaData, Table, Text, inspect, make_url, text

from agrpo.store import Store, events
from agrpo.store.columns import Id
from agrpo.store.schema import metadata, runs
from agrpo.store.store import REVISIONS, VERSION_TABLE
from tests.worlds.small_groups import start_run


def differences(store):
    """Of the tables in the database from those of the code."""
    # Comments are for docs/schema.md; a reworded one is no change of the schema. Others may have tables there.
    options = {"compare_type": True, "version_table": VERSION_TABLE}
    options |= {"include_name": lambda name, kind, parents: kind != "table" or name in metadata.tables}
    with store.read() as connection:
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    changes = [change for part in found for change in (part if isinstance(part, list) else [part])]
    return [change for change in changes if change[0] != "modify_comment"]


def test_the_revisions_make_the_tables_that_the_code_uses(store):
    assert differences(store) == []


def test_events_of_an_old_database_get_their_own_name_with_their_rows(databases, backend):
    """Until revision 5 the table had the name of one of Prefect's."""
    store = Store.open(databases.empty(backend))
    with store.write_unchecked() as connection:
        command.upgrade(alembic_config(connection), "0004")
        connection.execute(text("DROP TABLE run_events"))
        old = old_events()
        old.create(connection)
        start = {"token": 0, "policy_version": 0, "next_prompt_index": 0, "last_ready_order": 0, "max_attempts": 9}
        run = {"run_id": "old", "status": "created", "config": {}, "config_hash": "", "run_dir": "", "request": "none"}
        connection.execute(runs.insert().values(**run, **start, created_at=0.0))
        row = {"run_id": "old", "token": 1, "at": 2.0, "kind": "restart", "message": "it died", "detail": {}}
        connection.execute(old.insert(), [row, row])
    store.migrate()
    assert differences(store) == []
    events.add(start_run(store), "restart", "again")
    assert [(event.id, event.message) for event in events.events(store, "old")] == [(1, "it died"), (2, "it died")]
    assert [event.id for event in events.events(store, "small")] == [3]
    with store.read() as connection:
        assert not inspect(connection).has_table("events")
        assert not {name for name in named_things(connection) if "_events" in name and "run_events" not in name}
    store.close()


def old_events():
    """The table as the first revision made it once, on a stand-in for its parent."""
    old = MetaData(naming_convention=metadata.naming_convention)
    Table("runs", old, Column("run_id", Text, primary_key=True))
    numbers = [Column(name, kind, nullable=False) for name, kind in (("token", Integer), ("at", Double))]
    words = [Column(name, kind, nullable=False) for name, kind in (("kind", Text), ("message", Text), ("detail", JSON))]
    run = Column("run_id", Text, ForeignKey("runs.run_id"), nullable=False)
    return Table("events", old, Column("id", Id, primary_key=True), run, *numbers, *words, Index(None, "run_id", "id"))


def named_things(connection):
    """Indexes, sequences and constraints; SQLite keeps a renamed table's constraints under their names."""
    if connection.dialect.name == "sqlite":
        return set(connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'index'")).scalars())
    relations = "SELECT relname FROM pg_class WHERE relkind IN ('i', 'S')"
    constraints = "SELECT conname FROM pg_constraint WHERE contype IN ('p', 'f')"
    return set(connection.execute(text(f"{relations} UNION {constraints}")).scalars())


def test_another_programs_events_are_left_alone(databases, backend):
    store = Store.open(databases.empty(backend))
    with store.write_unchecked() as connection:
        connection.execute(text("CREATE TABLE events (id TEXT, CONSTRAINT pk_events PRIMARY KEY (id))"))
    store.migrate()
    assert differences(store) == []
    with store.read() as connection:
        assert [column["name"] for column in inspect(connection).get_columns("events")] == ["id"]
    store.close()


def test_a_database_may_hold_prefect_too(databases, tmp_path):
    """With Prefect's own tables, whoever comes first: no name of ours is one of theirs."""
    url = databases.empty("postgresql")
    migrate_prefect(url, tmp_path)
    store = Store.open(url)
    store.migrate()
    assert differences(store) == []
    events.add(start_run(store), "restart", "it died")
    assert [event.message for event in events.events(store, "small")] == ["it died"]
    with store.read() as connection:
        assert "resource_id" in {column["name"] for column in inspect(connection).get_columns("events")}
    store.close()


def migrate_prefect(url, folder):
    """Prefect's own migrations, in a process of its own."""
    address = make_url(url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
    settings = {"PREFECT_HOME": str(folder), "PREFECT_API_DATABASE_CONNECTION_URL": address}
    arguments = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    done = subprocess.run(arguments, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_code_names_every_revision_in_order():
    scripts = ScriptDirectory.from_config(alembic_config())
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == REVISIONS


def alembic_config(connection=None):
    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    config.attributes["connection"] = connection
    return config


def test_checks_and_foreign_keys_are_in_the_database(store):
    with store.read() as connection:
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            foreign = {tuple(key["constrained_columns"]) for key in inspector.get_foreign_keys(table.name)}
            assert foreign == {tuple(key.column_keys) for key in table.foreign_key_constraints}, table.name
        checks = inspector.get_check_constraints("samples")
    assert any("pending" in check["sqltext"] for check in checks)
