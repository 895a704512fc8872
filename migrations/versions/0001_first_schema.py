"""First schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("config_hash", sa.Text, nullable=False),
        sa.Column("run_dir", sa.Text, nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("policy_version", sa.Integer, nullable=False),
        sa.Column("allowance_tokens", sa.BigInteger),
        sa.Column("allowance_step", sa.Integer),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("next_prompt_index", sa.BigInteger, nullable=False),
        sa.Column("last_ready_order", sa.BigInteger, nullable=False),
        sa.Column("checkpoint_step", sa.Integer),
        sa.Column("environment", sa.JSON),
        sa.Column("error", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.CheckConstraint("request IN ('none', 'stop', 'drain')", name="request"),
        sa.CheckConstraint("status IN ('created', 'running', 'stopped', 'failed', 'finished')", name="status"),
    )
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("token", sa.Integer, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.BigInteger, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("flow_run_id", sa.Text),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("renewed_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("expires_boot_s", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("outcome", sa.Text),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("trained_prompt_index", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "run_events",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Index(None, "run_id", "id"),
    )
    op.create_table(
        "heartbeats",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("index", sa.Integer, primary_key=True),
        sa.Column("loop", sa.Text, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("detail", sa.Text),
    )
    op.create_table(
        "metrics",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("reward", sa.Double),
        sa.Column("values", sa.JSON, nullable=False),
        sa.Column("logged_at", sa.Double, nullable=False),
    )
    op.create_table(
        "policies",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("published_at", sa.Double, nullable=False),
    )
    op.create_table(
        "processes",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pgid", sa.Integer, nullable=False),
        sa.Column("pid_started", sa.BigInteger, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("log_path", sa.Text, nullable=False),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("reason", sa.Text),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("settings_hash", sa.Text),
        sa.Column("url", sa.Text),
        sa.CheckConstraint("state IN ('running', 'ended')", name="state"),
        sa.Index(None, "run_id", "state"),
    )
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("policy_version", sa.Integer, nullable=False),
        sa.Column("recorded_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("weight_digest", sa.Text),
        sa.Column("values", sa.JSON),
    )
    op.create_table(
        "windows",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("values", sa.JSON, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Index(None, "run_id", "id"),
    )
    op.create_table(
        "groups",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("prompt_index", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("drop_reason", sa.Text),
        sa.Column("claimed_by", ID, sa.ForeignKey("processes.id")),
        sa.Column("claimed_at", sa.Double, nullable=False),
        sa.Column("row_index", sa.BigInteger),
        sa.Column("epoch", sa.Integer),
        sa.Column("version", sa.Integer),
        sa.Column("ready_order", sa.BigInteger),
        sa.Column("ready_at", sa.Double),
        sa.Column("prompt", sa.JSON),
        sa.Column("prompt_ids", sa.LargeBinary),
        sa.Column("stats", sa.JSON),
        sa.CheckConstraint("status IN ('claimed', 'ready', 'trained', 'dropped')", name="status"),
        sa.UniqueConstraint("run_id", "prompt_index"),
        sa.Index(None, "claimed_by"),
        sa.Index(None, "run_id", "ready_order"),
        sa.Index(None, "run_id", "status", "prompt_index"),
    )
    op.create_table(
        "servers",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("process_id", ID, sa.ForeignKey("processes.id")),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("weight_version", sa.Integer),
        sa.Column("info", sa.JSON, nullable=False),
        sa.CheckConstraint("state IN ('starting', 'healthy', 'lost')", name="state"),
        sa.UniqueConstraint("run_id", "url"),
    )
    op.create_table(
        "workers",
        sa.Column("process_id", ID, sa.ForeignKey("processes.id"), primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("in_flight", sa.Integer, nullable=False),
        sa.Column("admission_open", sa.Boolean, nullable=False),
        sa.Column("data_ended", sa.Boolean, nullable=False),
        sa.Column("allowance_step_seen", sa.Integer, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Index(None, "run_id"),
    )
    op.create_table(
        "policy_servers",
        sa.Column("server_id", ID, sa.ForeignKey("servers.id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("confirmed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollouts",
        sa.Column("group_id", ID, sa.ForeignKey("groups.id"), primary_key=True),
        sa.Column("member", sa.Integer, primary_key=True),
        sa.Column("rollout_id", sa.Text, nullable=False),
        sa.Column("completion", sa.JSON, nullable=False),
        sa.Column("num_generated", sa.Integer, nullable=False),
        sa.Column("tool_call_count", sa.Integer, nullable=False),
        sa.Column("tool_failure_count", sa.Integer, nullable=False),
        sa.Column("terminated", sa.Boolean, nullable=False),
        sa.Column("rewards", sa.JSON, nullable=False),
        sa.Column("reward", sa.Double),
        sa.Column("advantage", sa.Double, nullable=False),
    )
    op.create_table(
        "samples",
        sa.Column("id", ID, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("group_id", ID, nullable=False),
        sa.Column("member", sa.Integer, nullable=False),
        sa.Column("part", sa.Integer, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("step", sa.Integer),
        sa.Column("drop_reason", sa.Text),
        sa.Column("num_tokens", sa.Integer, nullable=False),
        sa.Column("num_trained", sa.Integer, nullable=False),
        sa.CheckConstraint("status IN ('pending', 'trained', 'dropped')", name="status"),
        sa.ForeignKeyConstraint(["group_id", "member"], ["rollouts.group_id", "rollouts.member"]),
        sa.UniqueConstraint("group_id", "position"),
        sa.Index(None, "run_id", "status", "step"),
    )
    op.create_table(
        "turns",
        sa.Column("group_id", ID, primary_key=True),
        sa.Column("member", sa.Integer, primary_key=True),
        sa.Column("turn", sa.Integer, primary_key=True),
        sa.Column("num_shared", sa.Integer, nullable=False),
        sa.Column("prompt_suffix", sa.LargeBinary, nullable=False),
        sa.Column("output_ids", sa.LargeBinary, nullable=False),
        sa.Column("output_log_probs", sa.LargeBinary, nullable=False),
        sa.Column("output_mask", sa.LargeBinary),
        sa.Column("candidates", sa.LargeBinary),
        sa.Column("top_ids", sa.LargeBinary),
        sa.Column("top_log_probs", sa.LargeBinary),
        sa.Column("finish_reason", sa.Text),
        sa.Column("weight_versions", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["group_id", "member"], ["rollouts.group_id", "rollouts.member"]),
    )
    op.create_table(
        "step_samples",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("step", sa.Integer, primary_key=True),
        sa.Column("micro_batch", sa.Integer, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("sample_id", ID, sa.ForeignKey("samples.id"), nullable=False),
        sa.ForeignKeyConstraint(["run_id", "step"], ["steps.run_id", "steps.step"]),
        sa.UniqueConstraint("run_id", "sample_id"),
    )


def downgrade() -> None:
    """Drop every table."""
    for name in (
        "step_samples",
        "turns",
        "samples",
        "rollouts",
        "policy_servers",
        "workers",
        "servers",
        "groups",
        "windows",
        "steps",
        "processes",
        "policies",
        "metrics",
        "heartbeats",
        "run_events",
        "checkpoints",
        "attempts",
        "runs",
    ):
        op.drop_table(name)
