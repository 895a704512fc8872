"""Digests of payloads, rollouts that are not finished yet, forks, pruning, and positions in streams."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def added() -> dict[str, list[sa.Column]]:  # type: ignore[type-arg]
    """New columns by table; a column object belongs to one statement only."""
    return {
        "runs": [
            sa.Column("forked_from", sa.Text),
            sa.Column("forked_step", sa.Integer),
            sa.Column("data_fingerprint", sa.Text),
        ],
        "groups": [
            sa.Column("digest", sa.Text),
            sa.Column("pruned_at", sa.Double),
            sa.Column("shared_group_id", ID),
        ],
        "rollouts": [
            sa.Column("status", sa.Text, nullable=False, server_default="scored"),
            sa.Column("version", sa.Integer),
        ],
        "turns": [sa.Column("digest", sa.Text)],
    }


def upgrade() -> None:
    """Add columns, which old rows leave empty, and the table of positions."""
    for table, columns in added().items():
        for column in columns:
            op.add_column(table, column)
    op.create_table(
        "stream_positions",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("index", sa.Integer, primary_key=True),
        sa.Column("row_index", sa.BigInteger, primary_key=True),
        sa.Column("state", sa.JSON, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_table("stream_positions")
    for table, columns in added().items():
        for column in columns:
            op.drop_column(table, column.name)
