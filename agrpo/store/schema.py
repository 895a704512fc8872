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

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True, comment="Name of the run."),
    column("status", Text, "created, running, stopped, failed or finished."),
    column("config", JSON, "The run file as it was parsed."),
    column("config_hash", Text, "Hash of the settings that a resumed run must share."),
    column("run_dir", Text, "Folder of logs and checkpoints."),
    column("token", Integer, "Fencing token: the number of the attempt that owns the run; 0 before the first."),
    column("max_attempts", Integer, "Attempts that may end uncleanly before the run is given up."),
    column("policy_version", Integer, "Last published policy version; -1 before the first."),
    column("allowance_tokens", BigInteger, "Sample tokens the workers may hold.", nullable=True),
    column("allowance_step", Integer, "Step after which the allowance was set.", nullable=True),
    column("request", Text, "What a person asked for: none, stop or drain."),
    column("next_prompt_index", BigInteger, "First prompt index that nobody has claimed yet."),
    column("last_ready_order", BigInteger, "Last number given to a finished group."),
    column("checkpoint_step", Integer, "The cursor: the step a restart resumes from.", nullable=True),
    column("environment", JSON, "Versions and hardware that bitwise equality depends on.", nullable=True),
    column("error", Text, "Why the run failed.", nullable=True),
    column("created_at", Double, "When the row was made."),
    column("started_at", Double, "When the run was first running.", nullable=True),
    column("finished_at", Double, "When it last stopped, failed or finished.", nullable=True),
    one_of("status", "created", "running", "stopped", "failed", "finished"),
    one_of("request", "none", "stop", "drain"),
)

attempts = Table(
    "attempts",
    metadata,
    run_column(primary_key=True),
    Column("token", Integer, primary_key=True, comment="Number of the attempt, from 1."),
    column("host", Text, "Host of the launcher that holds the lease."),
    column("pid", Integer, "Its process id."),
    column("pid_started", BigInteger, "Its start time in clock ticks since boot."),
    column("boot_id", Text, "The kernel's id of that boot."),
    column("flow_run_id", Text, "Prefect's flow run, where there is one.", nullable=True),
    column("started_at", Double, "When the lease was taken (database clock)."),
    column("renewed_at", Double, "When it was last renewed (database clock)."),
    column("expires_at", Double, "When other hosts may take it over (database clock)."),
    column("expires_boot_s", Double, "The same on the holder's host, in seconds since boot: no clock jump moves it."),
    column("ended_at", Double, "When the attempt released the lease.", nullable=True),
    column("outcome", Text, "How it ended: finished, stopped, failed; NULL: it died.", nullable=True),
)

processes = Table(
    "processes",
    metadata,
    id_column("Number of the process."),
    run_column(),
    column("token", Integer, "The attempt that owns it; an adopted process moves to the new one."),
    column("kind", Text, "trainer, worker or server."),
    column("index", Integer, "Which one of its kind, from 0."),
    column("host", Text, "Host it runs on."),
    column("pid", Integer, "Process id."),
    column("pgid", Integer, "Process group, ended as a whole."),
    column("pid_started", BigInteger, "Start time in clock ticks since boot: tells a re-used pid."),
    column("boot_id", Text, "The kernel's id of that boot."),
    column("state", Text, "running or ended."),
    column("log_path", Text, "File with its output."),
    column("restarts", Integer, "How often this attempt had started it before."),
    column("exit_code", Integer, "Exit code, negative for a signal.", nullable=True),
    column("reason", Text, "Why it ended.", nullable=True),
    column("started_at", Double, "When it was registered."),
    column("ended_at", Double, "When its end was recorded.", nullable=True),
    column("settings_hash", Text, "Hash of the settings it was started with; adoption compares it.", nullable=True),
    column("url", Text, "Where it listens.", nullable=True),
    one_of("state", "running", "ended"),
    Index(None, "run_id", "state"),
)

workers = Table(
    "workers",
    metadata,
    Column("process_id", Id, ForeignKey("processes.id"), primary_key=True, comment="The worker's process."),
    run_column(),
    column("in_flight", Integer, "Groups being generated or scored."),
    column("admission_open", Boolean, "Whether it may start another group under the allowance."),
    column("data_ended", Boolean, "Whether no prompt is left for it."),
    column("allowance_step_seen", Integer, "runs.allowance_step that the two flags refer to."),
    column("at", Double, "When it said so."),
    Index(None, "run_id"),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    run_column(primary_key=True),
    Column("kind", Text, primary_key=True, comment="Kind of the process."),
    Column("index", Integer, primary_key=True, comment="Which one of its kind."),
    Column("loop", Text, primary_key=True, comment="The loop inside it that is alive."),
    column("at", Double, "When it last went round."),
    column("detail", Text, "What it was doing.", nullable=True),
)

servers = Table(
    "servers",
    metadata,
    id_column("Number of the server."),
    run_column(),
    column("url", Text, "Base URL."),
    column("index", Integer, "Which server, from 0."),
    column("process_id", Id, "Its process; NULL: given by URL.", nullable=True, references="processes.id"),
    column("state", Text, "starting, healthy or lost."),
    column("weight_version", Integer, "Policy version that it confirmed; NULL: unknown.", nullable=True),
    column("info", JSON, "Capabilities that it reported."),
    one_of("state", "starting", "healthy", "lost"),
    UniqueConstraint("run_id", "url"),
)

policies = Table(
    "policies",
    metadata,
    run_column(primary_key=True),
    Column("version", Integer, primary_key=True, comment="Policy version, from 0."),
    column("step", Integer, "The step that made it; 0: the weights the run started with."),
    column("digest", Text, "Digest of its weights."),
    column("published_at", Double, "When it was published."),
)

policy_servers = Table(
    "policy_servers",
    metadata,
    Column("server_id", Id, ForeignKey("servers.id"), primary_key=True, comment="The server."),
    Column("version", Integer, primary_key=True, comment="The policy version it confirmed."),
    column("confirmed_at", Double, "When it last did."),
)

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
    one_of("status", "claimed", "ready", "trained", "dropped"),
    UniqueConstraint("run_id", "prompt_index"),
    Index(None, "run_id", "status", "prompt_index"),
    Index(None, "run_id", "ready_order"),
    Index(None, "claimed_by"),
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

events = Table(
    "events",
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
