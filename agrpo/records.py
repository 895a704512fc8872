"""What travels between the parts: records, one sentence and one shape a field.

Those that hooks make or see may be changed, as documented (`rollout.reward = ...`); the others are frozen.
Data moves forward: prompt -> group of rollouts -> samples -> row -> step. The words are those of docs/words.md.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Message = dict[str, Any]

NO_REWARD = "no_reward"
"""Why a group is dropped of which no source scored any rollout."""


@dataclass(slots=True)
class TurnRecord:
    """One sampling request: the prompt sent and the tokens that came back."""

    prompt_ids: list[int]
    """The whole prompt, earlier turns included [prompt tokens]."""
    output_ids: list[int]
    """The generated tokens [output tokens]."""
    output_log_probs: list[float] = field(default_factory=list)
    """The sampler's log-probability of each generated token, NaN where it gave none [output tokens]."""
    output_mask: list[int] | None = None
    """1 trains the token, 0 keeps it as context [output tokens]; None trains all."""
    output_sampling_mask: list[list[int]] | None = None
    """Candidate ids of each token under top-k, top-p or min-p [output tokens][candidates]; None: all."""
    output_sampler_logprobs: list[dict[int, float]] | None = None
    """The sampler's most likely ids and their log-probabilities [output tokens]{id: log-prob}."""
    finish_reason: str | None = None
    """The server's word: "stop" after an end token, "length" when cut."""
    weight_versions: list[tuple[str, int, int]] = field(default_factory=list)
    """Spans (version, start, end) of output_ids by the policy version that produced them."""


@dataclass(slots=True)
class Rollout:
    """One whole conversation generated for a prompt."""

    completion: list[Message]
    """Messages after the prompt."""
    completion_ids: list[int]
    """Generated tokens of all turns [completion tokens]."""
    turns: list[TurnRecord]
    """The sampling requests in order; samples are built from these."""
    tool_call_count: int = 0
    tool_failure_count: int = 0
    reward: float | None = None
    """A reward set while generating; None adds nothing."""
    rollout_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class RolloutGroup:
    """One prompt with its G rollouts; every list has G entries in the same order."""

    prompts: list[list[Message]]
    reward_kwargs: dict[str, list[Any]]
    """Dataset columns other than `prompt`, repeated G times."""
    completions: list[list[Message]]
    completions_ids: list[list[int]]
    completions_sequences: list[list["TrainingSequence"]]
    """The samples of each rollout, without advantage yet."""
    tool_call_counts: list[int]
    tool_failure_counts: list[int]
    model_version: int
    """Policy version when the group's first rollout started."""
    group_id: int
    row_index: int
    env_rewards: list[tuple[type, float] | None]
    """Class and reward where an environment scores itself, else None."""
    rollout_rewards: list[float | None]
    queued_at: float = 0.0
    """`time.monotonic()` when the group was complete."""
    rewards: np.ndarray | None = None
    """Sum over all sources, NaN where none scored, float64 [G]."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """A sample: tokens of one rollout on which the loss is computed, each generated token in exactly one sample."""

    token_ids: np.ndarray
    """Prompt, generated and tool tokens in order, int32 [tokens]."""
    trained: np.ndarray
    """True where the token is a loss term (never the first token), bool [tokens]."""
    log_probs: np.ndarray
    """Sampler log-probability where trained, NaN elsewhere, float32 [tokens]."""
    top_ids: list[np.ndarray] | None = None
    """The sampler's most likely ids at each trained token, int32 [trained tokens][<= K]."""
    top_log_probs: list[np.ndarray] | None = None
    """Their log-probabilities, float32 [trained tokens][<= K]."""
    candidates: list[np.ndarray] | None = None
    """Candidate set of each trained token, int32 [trained tokens][candidates]; None: the whole vocabulary."""
    advantage: float = 0.0
    version: int = 0
    """Policy version of the group."""
    sample_id: int = 0
    group_id: int = 0
    rollout_id: str = ""

    @property
    def num_tokens(self) -> int:
        """Forwarded tokens."""
        return len(self.token_ids)

    @property
    def num_trained(self) -> int:
        """Loss terms."""
        return int(self.trained.sum())


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout after scoring, as the store keeps it."""

    rollout: Rollout
    sequences: list[TrainingSequence]
    """Its samples with the advantage set; empty when nothing of it is trained."""
    rewards: dict[str, float | None]
    """Per source name; None where the source did not apply."""
    reward: float
    """Sum over sources, NaN when none scored."""
    advantage: float
    terminated: bool
    """The last turn ended with an end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """What the worker hands to the store when a group is finished and scored."""

    group_id: int
    prompt_index: int
    row_index: int
    epoch: int
    model_version: int
    prompt: list[Message]
    prompt_ids: list[int]
    """Tokens of the first turn's prompt [prompt tokens]."""
    rollouts: list[ScoredRollout]
    drop_reason: str | None = None
    """None: the samples are pending; else why the whole group is dropped ("no_signal", NO_REWARD, "unscored", ...)."""
    stats: dict[str, float] = field(default_factory=dict)
    """Measurements of this group for the metrics (durations in seconds, counts)."""
