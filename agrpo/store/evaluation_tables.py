"""The tables of evaluations and of what was decided after them."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text

from agrpo.store.columns import Id, column, id_column, metadata, run_column

evaluations = Table(
    "evaluations",
    metadata,
    id_column("Number of the evaluation."),
    run_column(),
    column("step", Integer, "The step whose weights were evaluated; 0: the model the run began with."),
    column("model", Text, "Folder or name of the weights."),
    column("tasks", Text, "Fingerprint of prompts, samples and sampling: equal ones may be compared."),
    column("begun_at", Double, "When it began."),
    column("finished_at", Double, "When every prompt was scored.", nullable=True),
    column("values", JSON, "Mean reward and pass@k, each with its 95 % interval.", nullable=True),
    Index(None, "run_id", "step"),
    Index(None, "model", "tasks"),
)

evaluation_samples = Table(
    "evaluation_samples",
    metadata,
    Column("evaluation_id", Id, ForeignKey("evaluations.id"), primary_key=True, comment="The evaluation."),
    Column("row_index", BigInteger, primary_key=True, comment="Row of the held-out data."),
    Column("sample", Integer, primary_key=True, comment="Which answer to the prompt, from 0."),
    column("completion", JSON, "Messages after the prompt."),
    column("rewards", JSON, "Reward by source name; null: the source did not apply."),
    column("reward", Double, "Sum over the sources."),
)

promotions = Table(
    "promotions",
    metadata,
    id_column("Grows with time."),
    column("lineage", Text, "Name of the recurring training."),
    run_column(),
    column("at", Double, "When it was decided."),
    column("candidate", Text, "Folder of the weights that the run made."),
    column("baseline", Text, "Folder or name of the weights that were the lineage's until then."),
    column("promoted", Boolean, "Whether the candidate took the baseline's place."),
    column("reason", Text, "The decision in words."),
    column("numbers", JSON, "Difference with its interval, p value, prompts, level."),
    Index(None, "lineage", "id"),
)
