"""A name of its own for the table of events: Prefect's database has `events` too, and one database may hold both."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Rename it where an older first revision made it; only ours tells of runs."""
    database = op.get_bind()
    found = sa.inspect(database)
    if not found.has_table("events") or "run_id" not in {column["name"] for column in found.get_columns("events")}:
        return
    op.rename_table("events", "run_events")
    if database.dialect.name != "postgresql":  # SQLite renames no index, and has the key and its numbers in the table
        op.drop_index("ix_events_run_id_id", "run_events")
        op.create_index("ix_run_events_run_id_id", "run_events", ["run_id", "id"])
        return
    op.execute("ALTER INDEX ix_events_run_id_id RENAME TO ix_run_events_run_id_id")
    op.execute("ALTER TABLE run_events RENAME CONSTRAINT pk_events TO pk_run_events")
    op.execute("ALTER TABLE run_events RENAME CONSTRAINT fk_events_run_id TO fk_run_events_run_id")
    op.execute("ALTER SEQUENCE events_id_seq RENAME TO run_events_id_seq")


def downgrade() -> None:
    """Nothing: the first revision makes the new name by now."""
