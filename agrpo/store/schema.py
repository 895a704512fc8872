"""The tables of the store; docs/schema.md is made from the comments here. Times are seconds since 1970 (UTC)."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)

from agrpo.store.columns import Id, column, id_column, metadata, one_of, run_column
from agrpo.store.evaluation_tables import evaluation_samples, evaluations, promotions
from agrpo.store.run_tables import (
    attempts,
    heartbeats,
    policies,
    policy_servers,
    processes,
    runs,
    servers,
    workers,
)

__all__ = [
    "attempts",
    "checkpoints",
    "evaluation_samples",
    "evaluations",
    "groups",
    "heartbeats",
    "metadata",
    "metrics",
    "policies",
    "policy_servers",
    "processes",
    "promotions",
    "rollouts",
    "run_events",
    "runs",
    "samples",
    "servers",
    "step_samples",
    "steps",
    "stream_positions",
    "turns",
    "windows",
    "workers",
]

groups = Table(
    "groups",
    metadata,
    id_column("Number of the group."),
    run_column(),
    column("prompt_index", BigInteger, "Place in the run's order of prompts, over all epochs."),
    column("status", Text, "claimed, ready (a sample is pending), trained or dropped: follows from its samples."),
    column("drop_reason", Text, "Why the whole group was dropped before any sample was pending.", nullable=True),
    column("claimed_by", Id, "Who generates it; NULL: a free claim.", nullable=True, references="processes.id"),
    column("claimed_at", Double, "When it was last claimed."),
    column("row_index", BigInteger, "Row of the data set.", nullable=True),
    column("epoch", Integer, "Complete passes before this one.", nullable=True),
    column("version", Integer, "Policy version when its first rollout started.", nullable=True),
    column("ready_order", BigInteger, "Order in which groups were finished, from 1.", nullable=True),
    column("ready_at", Double, "When it was finished.", nullable=True),
    column("prompt", JSON, "The prompt's messages.", nullable=True),
    column("prompt_ids", LargeBinary, "The prompt's tokens (agrpo.codec).", nullable=True),
    column("stats", JSON, "Measurements made by the worker.", nullable=True),
    column("digest", Text, "XXH3 of prompt_ids; NULL: written before there was one.", nullable=True),
    column("pruned_at", Double, "When its tokens and log-probabilities were deleted.", nullable=True),
    column("shared_group_id", Id, "The group of the run forked from that stands for it.", nullable=True),
    one_of("status", "claimed", "ready", "trained", "dropped"),
    UniqueConstraint("run_id", "prompt_index"),
    Index(None, "run_id", "status", "prompt_index"),
    Index(None, "run_id", "ready_order"),
    Index(None, "claimed_by"),
    Index(None, "shared_group_id"),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("group_id", Id, ForeignKey("groups.id"), primary_key=True, comment="The group."),
    Column("member", Integer, primary_key=True, comment="Which rollout of the group, from 0."),
    column("rollout_id", Text, "Random name given by the worker."),
    column("completion", JSON, "Messages after the prompt."),
    column("num_generated", Integer, "Generated tokens of all turns."),
    column("tool_call_count", Integer, "Tool calls made."),
    column("tool_failure_count", Integer, "Tool calls that failed."),
    column("terminated", Boolean, "Whether the last turn ended with an end-of-sequence token."),
    column("rewards", JSON, "Reward by source name; null: the source did not apply."),
    column("reward", Double, "Sum over the sources; NULL: none scored.", nullable=True),
    column("advantage", Double, "Advantage inside the group."),
    Column(
        "status",
        Text,
        nullable=False,
        server_default="scored",
        comment="open: its group is being generated; scored: it is finished.",
    ),
    column("version", Integer, "Policy version when it started; NULL: the group's.", nullable=True),
)

turns = Table(
    "turns",
    metadata,
    Column("group_id", Id, primary_key=True, comment="The group."),
    Column("member", Integer, primary_key=True, comment="The rollout."),
    Column("turn", Integer, primary_key=True, comment="Which request of the rollout, from 0."),
    column("num_shared", Integer, "Tokens its prompt shares with the history (turn 0: with the group's prompt)."),
    column("prompt_suffix", LargeBinary, "The prompt's other tokens (agrpo.codec)."),
    column("output_ids", LargeBinary, "Generated tokens (agrpo.codec)."),
    column("output_log_probs", LargeBinary, "The sampler's log-probabilities (agrpo.codec)."),
    column("output_mask", LargeBinary, "1 trains a token, 0 does not; NULL: all 1 (agrpo.codec).", nullable=True),
    column("candidates", LargeBinary, "Candidate set of each token (agrpo.codec).", nullable=True),
    column("top_ids", LargeBinary, "Most likely ids at each token (agrpo.codec).", nullable=True),
    column("top_log_probs", LargeBinary, "Their log-probabilities (agrpo.codec).", nullable=True),
    column("finish_reason", Text, "The server's word.", nullable=True),
    column("weight_versions", JSON, "Spans [version, start, end] of the output by policy version."),
    column("digest", Text, "XXH3 of the arrays in column order; NULL: written before there was one.", nullable=True),
    ForeignKeyConstraint(["group_id", "member"], ["rollouts.group_id", "rollouts.member"]),
)

samples = Table(
    "samples",
    metadata,
    id_column("Number of the sample."),
    run_column(),
    column("group_id", Id, "The group."),
    column("member", Integer, "The rollout."),
    column("part", Integer, "Which sample of the rollout's turns, from 0."),
    column("position", Integer, "Place among the samples of the group, from 0."),
    column("status", Text, "pending, trained or dropped."),
    column("step", Integer, "The step that trains it.", nullable=True),
    column("drop_reason", Text, "Why it was dropped.", nullable=True),
    column("num_tokens", Integer, "Forwarded tokens."),
    column("num_trained", Integer, "Trained tokens."),
    one_of("status", "pending", "trained", "dropped"),
    ForeignKeyConstraint(["group_id", "member"], ["rollouts.group_id", "rollouts.member"]),
    UniqueConstraint("group_id", "position"),
    Index(None, "run_id", "status", "step"),
)

steps = Table(
    "steps",
    metadata,
    run_column(primary_key=True),
    Column("step", Integer, primary_key=True, comment="Optimizer step, from 1."),
    column("token", Integer, "The attempt that recorded it."),
    column("policy_version", Integer, "Published version when it was recorded."),
    column("recorded_at", Double, "When its samples were fixed."),
    column("finished_at", Double, "When its weights were first made.", nullable=True),
    column("weight_digest", Text, "Digest of the weights it made.", nullable=True),
    column("values", JSON, "What the trainer noted about it.", nullable=True),
)

step_samples = Table(
    "step_samples",
    metadata,
    run_column(primary_key=True),
    Column("step", Integer, primary_key=True, comment="The step."),
    Column("micro_batch", Integer, primary_key=True, comment="Micro-batch of the step, from 0."),
    Column("rank", Integer, primary_key=True, comment="Process that forwards the row."),
    Column("position", Integer, primary_key=True, comment="Place in the row, from 0."),
    column("sample_id", Id, "The sample.", references="samples.id"),
    ForeignKeyConstraint(["run_id", "step"], ["steps.run_id", "steps.step"]),
    UniqueConstraint("run_id", "sample_id"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    run_column(primary_key=True),
    Column("step", Integer, primary_key=True, comment="The last step it contains."),
    column("path", Text, "Its folder."),
    column("digest", Text, "Digest of its weights."),
    column("trained_prompt_index", BigInteger, "First prompt not yet wholly trained or dropped at that step."),
    column("created_at", Double, "When it was complete."),
)

metrics = Table(
    "metrics",
    metadata,
    run_column(primary_key=True),
    Column("step", Integer, primary_key=True, comment="The step it was logged at."),
    column("reward", Double, "The value named reward, for quick reading.", nullable=True),
    column("values", JSON, 'All values by name; NaN and infinities are the strings "nan", "inf", "-inf".'),
    column("logged_at", Double, "When it was logged."),
)

windows = Table(
    "windows",
    metadata,
    id_column("Grows with time."),
    run_column(),
    column("kind", Text, "Kind of the process that measured."),
    column("index", Integer, "Which one of its kind."),
    column("values", JSON, "Gauges and counts since its last window."),
    column("at", Double, "When it was written."),
    Index(None, "run_id", "id"),
)

stream_positions = Table(
    "stream_positions",
    metadata,
    run_column(primary_key=True),
    Column("index", Integer, primary_key=True, comment="The worker, from 0."),
    Column("row_index", BigInteger, primary_key=True, comment="The next row that the stream gives from here."),
    column("state", JSON, "What the stream says of its position, a digest of the next rows, and whether it ends."),
    column("at", Double, "When it was noted."),
)

run_events = Table(
    "run_events",
    metadata,
    id_column("Grows with time."),
    run_column(),
    column("token", Integer, "The attempt that it happened to."),
    column("at", Double, "When it happened."),
    column("kind", Text, "One word to search by."),
    column("message", Text, "One line for a person."),
    column("detail", JSON, "Values for a program."),
    Index(None, "run_id", "id"),
)
