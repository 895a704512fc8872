"""An index that finds the groups which stand on another run's."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add it."""
    op.create_index("ix_groups_shared_group_id", "groups", ["shared_group_id"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_groups_shared_group_id", "groups")
