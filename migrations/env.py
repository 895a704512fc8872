"""Alembic's entry: inside Store.migrate() it gets a connection, on the command line it opens AGRPO_DATABASE_URL."""

import os

from alembic import context
from sqlalchemy import Connection

from agrpo.store.schema import metadata
from agrpo.store.store import VERSION_TABLE, Store


def run(connection: Connection) -> None:
    """Run the revisions inside the connection's transaction, on SQLite too."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        include_name=lambda name, kind, parents: kind != "table" or name in metadata.tables,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Store.open(os.environ.get("AGRPO_DATABASE_URL") or "sqlite:///runs/agrpo.db").write_unchecked() as opened:
        run(opened)
