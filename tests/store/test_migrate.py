from importlib import resources

from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from agrpo.store.schema import metadata
from agrpo.store.store import REVISIONS, VERSION_TABLE


def test_the_revisions_make_the_tables_that_the_code_uses(store):
    # Comments are for docs/schema.md; a reworded one is no change of the schema.
    options = {"compare_type": True, "version_table": VERSION_TABLE}
    with store.read() as connection:
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    changes = [change for part in found for change in (part if isinstance(part, list) else [part])]
    assert [change for change in changes if change[0] != "modify_comment"] == []


def test_the_code_names_every_revision_in_order():
    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == REVISIONS


def test_checks_and_foreign_keys_are_in_the_database(store):
    from sqlalchemy import inspect

    with store.read() as connection:
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            foreign = {tuple(key["constrained_columns"]) for key in inspector.get_foreign_keys(table.name)}
            assert foreign == {tuple(key.column_keys) for key in table.foreign_key_constraints}, table.name
        checks = inspector.get_check_constraints("samples")
    assert any("pending" in check["sqltext"] for check in checks)
