"""The tables of a run and its processes, servers and policies."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
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
    column("forked_from", Text, "The run that this one continues from forked_step on.", nullable=True),
    column("forked_step", Integer, "The last step shared with that run.", nullable=True),
    column("data_fingerprint", Text, "What the data set's content was; NULL: nobody has said yet.", nullable=True),
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
    column("kind", Text, "trainer, worker, server or evaluator."),
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
