"""The run file's trainer section: every option of AsyncGRPOConfig, and the ranks that run it. No torch here."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from agrpo.settings import Dtype, Section

_LAUNCH_KEYS = {"ranks", "threads", "gpus", "config", "training_arguments"}

Schedule = Literal[
    "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr", "polynomial", "inverse_sqrt"
]


_SCHEDULES_WITHOUT_END = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy")


def clashes(given: Mapping[str, Any]) -> list[tuple[object, str]]:
    """Of values that are fine each by itself: whether they cannot work together, and why. AsyncGRPOConfig asks too."""
    top_p, min_p, schedule = given["top_p"], given["min_p"], given["lr_scheduler_type"]
    low, high = given["vllm_importance_sampling_clip_min"], given["vllm_importance_sampling_clip_max"]
    return [
        (
            (top_p < 1 or min_p) and given["top_k"] == 0,
            f"top_p={top_p}, min_p={min_p} need top_k > 0, which bounds the candidate set",
        ),
        (not 0 <= low < high, f"vllm_importance_sampling_clip_min={low}, clip_max={high}: expected 0 <= min < max"),
        (given["max_steps"] <= 0 and not is_endless(given), f"{schedule} learning rate without an end: set max_steps"),
    ]


def is_endless(given: Mapping[str, Any]) -> bool:
    """Whether the learning rate of a step does not depend on how many steps there will be."""
    # A warm-up below 1 is a share of all the steps.
    return given["lr_scheduler_type"] in _SCHEDULES_WITHOUT_END and not 0 < given["warmup_steps"] < 1


class TrainerSettings(Section):
    """How the policy is trained."""

    max_steps: int = Field(default=-1, ge=-1)
    """Optimizer steps to make; -1 leaves the end to `num_train_epochs`."""
    num_train_epochs: float = Field(default=3.0, gt=0)
    """Passes over the prompts, while `max_steps` is unset."""
    learning_rate: float = Field(default=1e-6, ge=0)
    """Step size of the optimizer."""
    lr_scheduler_type: Schedule = "constant"
    """How the learning rate moves; one that decays needs `max_steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Micro-batches in a step."""
    gradient_checkpointing: bool = True
    """Compute activations again in the backward pass: slower, less memory."""
    bf16: bool | None = None
    """Mixed precision in bfloat16; None: on with a GPU, off on a CPU."""
    seed: int = 42
    """Seed of everything random in training."""
    save_steps: int = Field(default=500, ge=1)
    """A checkpoint is due after this many steps, or after `checkpoint_minutes`."""
    save_total_limit: int | None = Field(default=None, ge=1)
    """How many checkpoints stay on disk; None keeps all."""
    logging_steps: int = Field(default=1, ge=1)
    """Steps between two rows of metrics."""

    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups that make a step; None fills rows up to `token_budget`."""
    checkpoint_minutes: float = Field(default=10.0, gt=0)
    """A checkpoint is due after this many minutes, or after `save_steps`."""
    num_generations: int = Field(default=8, ge=2)
    """Completions of each prompt: the group's size."""
    max_completion_length: int = Field(default=2048, ge=1)
    """Longest completion of one request, in tokens."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; it also divides the trainer's logits."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; below 1 it needs `top_k`."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k most likely tokens; 0 takes all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Sample from tokens at least this fraction as likely as the most likely one; it needs `top_k`."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1 makes repeated tokens less likely."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template, such as {"enable_thinking": false}."""
    max_tool_calling_iterations: int | None = Field(default=None, ge=1)
    """Rounds of tool calls in a rollout; None: until the model stops calling."""
    dtype: Dtype = "float32"
    """Precision in which the trainer loads the weights."""
    model_init_kwargs: dict[str, Any] | None = None
    """Arguments of `from_pretrained`; its `dtype` and `revision` win."""
    trust_remote_code: bool = False
    """Run code that comes with the model. It can do anything you can."""
    router_aux_loss_coef: float | None = Field(default=None, ge=0)
    """Weight of the load-balancing loss of mixture-of-experts models; it sees a shared token once."""
    attention_backend: str | None = None
    """Computes attention over rows: `tree_flash4`, `tree_flash3`, `tree_aiter`, `tree_varlen`, `tree_flex`, `tree_cpu`
    or an import path `package.module:object`; None takes the first of these that can serve model and device."""
    vllm_server_timeout: float = Field(default=1800.0, gt=0)
    """Limit of readiness, of each request and of each weight update, in seconds."""
    epsilon: float = Field(default=0.2, ge=0)
    """Lower clip of the probability ratio."""
    epsilon_high: float | None = Field(default=None, ge=0)
    """Upper clip of the probability ratio; None: the same as `epsilon`."""
    score_centering: bool = True
    """Centre the score instead of clipping the ratio."""
    vllm_importance_sampling_clip_min: float = Field(default=0.5, ge=0)
    """Tokens whose trainer-to-sampler ratio is below this are masked."""
    vllm_importance_sampling_clip_max: float = Field(default=5.0, gt=0)
    """Tokens whose trainer-to-sampler ratio is above this are masked."""
    num_sampler_logprobs: int = Field(default=8, ge=1)
    """How many of the sampler's most likely tokens come with each sampled one."""
    token_budget: int | None = Field(default=None, ge=1)
    """Tokens of a row; None: the server's `max_model_len`."""
    max_concurrent_rollouts: int = Field(default=512, ge=1)
    """Rollouts in flight at most."""
    max_staleness: int = Field(default=4, ge=0)
    """Policy versions a sample may be behind when it is trained."""
    weight_sync_steps: int = Field(default=1, ge=1)
    """Steps between two weight updates of the servers."""
    rollout_worker_timeout: float = Field(default=300.0, gt=0)
    """Silence of one of a worker's loops after which the worker is ended and started again, in seconds."""
    reward_timeout_s: float = Field(default=60.0, gt=0)
    """Limit of one call of a reward function, in seconds."""
    tool_timeout_s: float = Field(default=60.0, gt=0)
    """Limit of one call of a tool, in seconds."""
    reset_timeout_s: float = Field(default=120.0, gt=0)
    """Limit of making an environment, and of each reset, in seconds."""
    get_reward_timeout_s: float = Field(default=60.0, gt=0)
    """Limit of an environment's get_reward, in seconds."""
    probe_steps: int = Field(default=50, ge=0)
    """Published versions, not steps, between two comparisons of server and trainer; 0: only after the first."""
    probe_tolerance: float | None = Field(default=None, gt=0)
    """Largest difference of their log-probabilities, in nats; None: what rounding explains for their dtypes."""
    log_completions: bool = False
    """Print some completions every `logging_steps`."""
    num_completions_to_print: int | None = Field(default=None, ge=1)
    """How many; None prints all."""

    ranks: int = Field(default=1, ge=1)
    """Trainer processes. More than one: torchrun with gloo on CPUs, accelerate on GPUs."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each rank; None leaves it to torch."""
    gpus: list[int] | None = None
    """GPUs for the trainer; None takes the last `ranks`."""
    config: str | None = None
    """Import path of a subclass of AsyncGRPOConfig, as "package.module:Name"; None: that class itself."""
    training_arguments: dict[str, Any] = Field(default={})
    """Any further field of transformers' TrainingArguments, or of `config`, passed on as it is."""

    @model_validator(mode="after")
    def _keep_one_place(self) -> Self:
        for key in self.training_arguments:
            if key == "vllm_server_base_url":
                raise ValueError(f"'{key}' stands under training_arguments; write it under servers.urls")
            if key in type(self).model_fields:
                raise ValueError(f"'{key}' stands under training_arguments; write it directly under trainer")
        return self

    @model_validator(mode="after")
    def _refuse_clashes(self) -> Self:
        for wrong, message in clashes(dict(self)):
            if wrong:
                raise ValueError(message)
        return self

    def arguments(self) -> dict[str, Any]:
        """Keywords for AsyncGRPOConfig; None stands for the default there, so it is left out."""
        own = {key: value for key, value in self.model_dump(exclude=_LAUNCH_KEYS).items() if value is not None}
        return {**self.training_arguments, **own}
