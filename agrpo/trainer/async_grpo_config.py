"""Every setting of asynchronous GRPO, with the documented names and defaults."""

# ruff: noqa: RUF009 - _setting is dataclasses.field with the help text in its place

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType

from agrpo.errors import BadSetting
from agrpo.trainer_settings import clashes

DTYPES = ("auto", "bfloat16", "float16", "float32")
DOCUMENTED_BATCH_SIZE = 8
"""TrainingArguments' default of per_device_train_batch_size: any other value is somebody's intention."""


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class AsyncGRPOConfig(TrainingArguments):
    """Training arguments plus those of asynchronous GRPO; raises BadSetting for combinations that cannot work."""

    # Defaults that differ from TrainingArguments.
    learning_rate: float = _setting(1e-6, "Initial learning rate.")
    lr_scheduler_type: SchedulerType | str = _setting("constant", "A schedule that decays needs max_steps.")
    logging_steps: float = _setting(1, "Optimizer steps between two log lines: the window of all metrics.")
    gradient_checkpointing: bool = _setting(True, "Forward again in the backward pass instead of keeping activations.")
    bf16: bool | None = _setting(None, "None: True unless fp16 or on a CPU.")  # type: ignore[assignment]
    ignore_data_skip: bool = _setting(True, "Always True: the store, not the base trainer, knows where to resume.")
    remove_unused_columns: bool = _setting(False, "Must stay False: rewards read the dataset's columns.")

    # The model.
    model_init_kwargs: dict[str, Any] | str | None = _setting(None, "Keywords of from_pretrained.")
    dtype: str = _setting("float32", "Type of the weights: auto, bfloat16, float16 or float32.")
    trust_remote_code: bool = _setting(False, "Run code that comes with the model or tokenizer.")
    router_aux_loss_coef: float | None = _setting(None, "Load-balancing loss of MoE models; None: the model's config.")
    attention_backend: str | None = _setting(None, "Tree attention, of agrpo.attention.BACKENDS; None: the best.")

    # Generation.
    num_generations: int = _setting(8, "Rollouts per prompt: the size of a group.")
    max_completion_length: int = _setting(2048, "Most tokens one request may generate, so per turn.")
    temperature: float = _setting(1.0, "Sampling temperature; also divides the trainer's logits.")
    top_p: float = _setting(1.0, "Keep the most likely tokens up to this mass; needs top_k below 1.")
    top_k: int = _setting(0, "Keep this many most likely tokens; 0: all.")
    min_p: float | None = _setting(None, "Drop tokens less likely than this share of the most likely; needs top_k.")
    repetition_penalty: float = _setting(1.0, "Sampler's penalty on repeated tokens; 1.0: none.")
    chat_template_kwargs: dict[str, Any] | str | None = _setting(None, "Keywords of the chat template.")
    max_tool_calling_iterations: int | None = _setting(None, "Turns with tool calls; None: until the model stops.")

    # The servers.
    vllm_server_base_url: str = _setting("http://localhost:8000", "Where the vLLM server answers.")
    vllm_server_timeout: float = _setting(1800.0, "Seconds for readiness, for one request and for one weight update.")

    # The loss.
    epsilon: float = _setting(0.2, "Lower half-width of the trust region.")
    epsilon_high: float | None = _setting(None, "Upper half-width; None: epsilon.")
    score_centering: bool = _setting(True, "Centre the score over the sampler's most likely tokens; False: clip.")
    vllm_importance_sampling_clip_min: float = _setting(0.5, "Ratios below leave the loss.")
    vllm_importance_sampling_clip_max: float = _setting(5.0, "Ratios above leave the loss.")
    num_sampler_logprobs: int = _setting(8, "Most likely tokens of the sampler used for centring.")

    # The pace.
    token_budget: int | None = _setting(None, "Tokens in a row; None: the server's max_model_len.")
    groups_per_step: int | None = _setting(None, "Groups that make a step; None: rows are filled up to token_budget.")
    max_concurrent_rollouts: int = _setting(512, "Most rollouts in flight.")
    max_staleness: int = _setting(4, "Versions a sample may lag behind before it is dropped.")
    weight_sync_steps: int = _setting(1, "Optimizer steps between two weight updates of the servers.")

    # Limits, checkpoints, checks.
    rollout_worker_timeout: float = _setting(300.0, "Seconds without the worker's heartbeat before it is given up.")
    reward_timeout_s: float = _setting(60.0, "Seconds one call of a reward function may take.")
    tool_timeout_s: float = _setting(60.0, "Seconds one call of a tool may take.")
    reset_timeout_s: float = _setting(120.0, "Seconds an environment may take to be made, and to reset.")
    get_reward_timeout_s: float = _setting(60.0, "Seconds an environment's get_reward may take.")
    checkpoint_minutes: float = _setting(10.0, "Minutes after which a checkpoint is due before save_steps is reached.")
    probe_steps: int = _setting(50, "Published versions between two probes of the servers; 0: only the first.")
    probe_tolerance: float | None = _setting(None, "Largest |log-prob| difference a probe accepts; None: by dtype.")

    # What is printed.
    log_completions: bool = _setting(False, "Print a sample of completions every logging_steps.")
    num_completions_to_print: int | None = _setting(None, "How many are printed; None: all.")

    def __post_init__(self) -> None:
        """Resolve what depends on the machine and refuse what cannot work, before the base class reads the values."""
        _refuse_unsupported(self)
        if self.bf16 is None:
            self.bf16 = not (self.fp16 or self.use_cpu or not torch.accelerator.is_available())
        self.ignore_data_skip = True
        # Without this word accelerate takes several processes on a machine without a GPU for one.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        # Other ranks wait in a collective while rank 0 publishes: it may take as long as a server may take.
        self.ddp_timeout = max(self.ddp_timeout, int(2 * self.vllm_server_timeout))
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False
        super().__post_init__()  # type: ignore[no-untyped-call]
        _refuse_other_sharding(self)
        _refuse_bad_values(self)

    @property
    def model_revision(self) -> str | None:
        """Branch, tag or commit of the model on the Hub, where model_init_kwargs names one."""
        given = self.model_init_kwargs
        keywords = json.loads(given) if isinstance(given, str) else given or {}
        revision: str | None = keywords.get("revision")
        return revision


def _refuse_unsupported(args: AsyncGRPOConfig) -> None:
    """Refuse what TrainingArguments knows and this trainer does not do."""
    mesh = args.parallelism_config
    refusals = [
        (args.deepspeed, "deepspeed is set: DeepSpeed is not supported; shard with FSDP2 instead"),
        (mesh and mesh.cp_size > 1, "cp_size > 1: context parallelism is not supported; use a smaller token_budget"),
        (mesh and mesh.sp_size > 1, "sp_size > 1: sequence parallelism is not supported; use a smaller token_budget"),
        (args.use_liger_kernel, "use_liger_kernel=True: the head is already fused with the loss; leave it False"),
        (args.remove_unused_columns, "remove_unused_columns=True: rewards read the columns; leave it False"),
        (args.auto_find_batch_size, "auto_find_batch_size=True: a row is bounded by token_budget; leave it False"),
        (
            args.per_device_train_batch_size != DOCUMENTED_BATCH_SIZE,
            f"per_device_train_batch_size={args.per_device_train_batch_size} would do nothing: "
            "set groups_per_step (groups in a step) or token_budget (tokens in a row)",
        ),
    ]
    _raise_first(refusals)


def _refuse_other_sharding(args: AsyncGRPOConfig) -> None:
    """Refuse all but FSDP2 with whole checkpoints, once the base class has read `fsdp_config`, a file or a mapping."""
    sharding = args.fsdp_plugin_args or {}
    version, kind = sharding.get("fsdp_version", 2), sharding.get("state_dict_type", "FULL_STATE_DICT")
    refusals: list[tuple[object, str]] = [
        (version != 2, f"fsdp_config version {version}: sharded training is FSDP2; leave version out, or set 2"),
        (
            kind != "FULL_STATE_DICT",
            f"fsdp_config state_dict_type {kind}: a checkpoint must load with from_pretrained; leave it out",
        ),
    ]
    _raise_first(refusals)


def _refuse_bad_values(args: AsyncGRPOConfig) -> None:
    """Refuse values outside their range, and those that cannot work together."""
    _raise_first(_bad_generation(args) + _bad_loss(args) + _bad_pace(args) + clashes(vars(args)))


def _bad_generation(args: AsyncGRPOConfig) -> list[tuple[object, str]]:
    return [
        (args.dtype not in DTYPES, f"dtype={args.dtype!r}: expected one of {', '.join(DTYPES)}"),
        (args.num_generations < 2, f"num_generations={args.num_generations}: a group needs at least 2 rollouts"),
        (
            args.max_completion_length < 1,
            f"max_completion_length={args.max_completion_length}: expected at least 1 token",
        ),
        (args.temperature <= 0, f"temperature={args.temperature}: expected more than 0, as the ratio divides by it"),
        (not 0 < args.top_p <= 1, f"top_p={args.top_p}: expected more than 0 and at most 1"),
        (args.top_k < 0, f"top_k={args.top_k}: expected 0 (all tokens) or a number of tokens"),
        (args.min_p is not None and not 0 <= args.min_p <= 1, f"min_p={args.min_p}: expected 0 to 1"),
        (args.repetition_penalty <= 0, f"repetition_penalty={args.repetition_penalty}: expected more than 0"),
    ]


def _bad_loss(args: AsyncGRPOConfig) -> list[tuple[object, str]]:
    return [
        (args.epsilon < 0 or (args.epsilon_high or 0) < 0, "epsilon and epsilon_high: expected 0 or more"),
        (
            args.score_centering and args.num_sampler_logprobs < 1,
            f"num_sampler_logprobs={args.num_sampler_logprobs}: score_centering needs at least 1",
        ),
    ]


def _bad_pace(args: AsyncGRPOConfig) -> list[tuple[object, str]]:
    at_least_one = ("token_budget", "groups_per_step", "max_concurrent_rollouts", "weight_sync_steps")
    limits = ("vllm_server_timeout", "rollout_worker_timeout", "checkpoint_minutes")
    calls = ("reward_timeout_s", "tool_timeout_s", "reset_timeout_s", "get_reward_timeout_s")
    positive = (*limits, *calls, "probe_tolerance")
    values: dict[str, Any] = {name: vars(args)[name] for name in at_least_one + positive}
    return [
        (args.max_staleness < 0, f"max_staleness={args.max_staleness}: expected 0 or more versions"),
        (args.probe_steps < 0, f"probe_steps={args.probe_steps}: expected 0 or more versions"),
        *((values[n] is not None and values[n] < 1, f"{n}={values[n]}: expected at least 1") for n in at_least_one),
        *((values[n] is not None and values[n] <= 0, f"{n}={values[n]}: expected more than 0") for n in positive),
    ]


def _raise_first(refusals: list[tuple[object, str]]) -> None:
    for wrong, message in refusals:
        if wrong:
            raise BadSetting(message)
