"""Evaluations, their samples, and promotions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Add three tables."""
    op.create_table(
        "evaluations",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("tasks", sa.Text, nullable=False),
        sa.Column("begun_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("values", sa.JSON),
    )
    op.create_index("ix_evaluations_run_id_step", "evaluations", ["run_id", "step"])
    op.create_index("ix_evaluations_model_tasks", "evaluations", ["model", "tasks"])
    op.create_table(
        "evaluation_samples",
        sa.Column("evaluation_id", ID, sa.ForeignKey("evaluations.id"), primary_key=True),
        sa.Column("row_index", sa.BigInteger, primary_key=True),
        sa.Column("sample", sa.Integer, primary_key=True),
        sa.Column("completion", sa.JSON, nullable=False),
        sa.Column("rewards", sa.JSON, nullable=False),
        sa.Column("reward", sa.Double, nullable=False),
    )
    op.create_table(
        "promotions",
        sa.Column("id", ID, primary_key=True),
        sa.Column("lineage", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("candidate", sa.Text, nullable=False),
        sa.Column("baseline", sa.Text, nullable=False),
        sa.Column("promoted", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("numbers", sa.JSON, nullable=False),
    )
    op.create_index("ix_promotions_lineage_id", "promotions", ["lineage", "id"])


def downgrade() -> None:
    """Take them away again."""
    for table in ("promotions", "evaluation_samples", "evaluations"):
        op.drop_table(table)
