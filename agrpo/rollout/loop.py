"""What one rollout is, and the hooks that change it."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agrpo.advantages import group_advantages
from agrpo.errors import PromptTooLong, RequestRefused
from agrpo.inference.client import SamplingParams
from agrpo.records import Message, Rollout, RolloutGroup, TurnRecord
from agrpo.rollout.conversation import ChatFormat, Conversation
from agrpo.rollout.journal import MemberJournal
from agrpo.rollout.pool import ServerPool
from agrpo.rollout.threads import Threads
from agrpo.tools.tally import ToolTally
from agrpo.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agrpo.trainer.async_grpo_config import AsyncGRPOConfig


@dataclass(slots=True)
class RolloutPlace:
    """Which rollout the current task generates, and how many requests it has made: what a seed is made of."""

    run_id: str
    prompt_index: int
    member: int
    num_requests: int = 0
    tally: ToolTally = field(default_factory=ToolTally)
    """What its tools did."""
    journal: MemberJournal | None = None
    """Its turns as they came back; None where they are kept with their group only."""
    row: dict[str, Any] = field(default_factory=dict)
    """The dataset's row of its prompt."""
    max_tokens: int | None = None
    """What whoever asks wants at most in the next turn, within the config's `max_completion_length`."""

    def begin_again(self) -> None:
        """The rollout is generated from its start: seeds repeat, the tools' counts begin anew."""
        self.num_requests, self.tally, self.max_tokens = 0, ToolTally(), None
        if self.journal is not None:
            self.journal = self.journal.again()

    def next_seed(self) -> int:
        """A seed for the next request: the same on a replay, another for every member and turn."""
        key = f"{self.run_id}/{self.prompt_index}/{self.member}/{self.num_requests}"
        self.num_requests += 1
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") >> 1


rollout_place: ContextVar[RolloutPlace | None] = ContextVar("rollout_place", default=None)
"""Set for the task of each rollout; hooks only see the prompt."""


class AsyncRolloutLoop:
    """Generates and scores rollouts. Subclass it, override the hooks that change, set it as the trainer's `loop_cls`.

    Hooks may read `self.config`, `self.tokenizer` and `self.model_name`. The loop is built in a spawned process: the
    subclass must stand at module level, and what it opens belongs in `setup`.
    """

    def __init__(
        self,
        config: "AsyncGRPOConfig",
        model_name: str,
        tokenizer: "PreTrainedTokenizerBase",
        eos_token_ids: Sequence[int],
        pool: ServerPool,
    ) -> None:
        self.config = config
        self.model_name = model_name
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.threads = Threads(
            'set isolation = "process" on the tool or environment that hangs (environment.isolation: process in a run '
            "file), or raise its time limit"
        )
        """Where tools and environments run that would block the event loop."""
        self._pool = pool
        keywords = config.chat_template_kwargs
        given = json.loads(keywords) if isinstance(keywords, str) else keywords or {}
        self.chat = ChatFormat(tokenizer, given, self.eos_token_ids)

    def filter_prompt(self, row_index: int, row: dict[str, Any], epoch: int) -> bool:
        """Whether to generate for a prompt; called once per prompt, `epoch` counts complete passes before this one."""
        return True

    async def generate_one(self, prompt: list[Message], tools: list[Callable[..., Any]], group_id: int = 0) -> Rollout:
        """Generate one rollout; every sampling request must be in `Rollout.turns`, from which samples are built.

        Here: turns until one calls no tool, is cut, `max_tool_calling_iterations` rounds of calls are over, or the chat
        template cannot show what the model wrote. `tools` are the trainer's and the environment's methods.
        """
        place = rollout_place.get()
        tally = ToolTally() if place is None else place.tally
        toolbox = Toolbox(tools, self.threads, self.config.tool_timeout_s, tally)
        conversation = Conversation(self.chat, prompt, toolbox.schemas)
        limit = self.config.max_tool_calling_iterations
        prompt_ids = conversation.next_prompt()
        while True:
            turn = await self.generate_one_turn(prompt_ids)
            reply = conversation.add_turn(turn)
            if not reply.calls or turn.finish_reason == "length":
                break
            if limit is not None and len(tally.num_calls_by_message) >= limit:
                tally.exhausted = True
                break
            conversation.add_answers(reply, await toolbox.answer(reply.calls))
            try:
                prompt_ids = conversation.next_prompt()
            except RequestRefused:  # the template cannot show what the model wrote
                tally.exhausted = True
                break
        return Rollout(
            conversation.completion,
            conversation.output_ids,
            conversation.turns,
            tool_call_count=len(tally.uses),
            tool_failure_count=tally.num_failed,
        )

    async def generate_one_turn(self, prompt_ids: list[int]) -> TurnRecord:
        """One sampling request under the config's settings, retried while servers are away.

        `max_tokens` is clipped to what `max_model_len` leaves. With nothing left a later turn comes back empty, as cut;
        a rollout's first one raises PromptTooLong, which skips the prompt.
        """
        prompt_ids = list(prompt_ids)  # whoever asks may extend its own
        place = rollout_place.get()
        is_first = place is None or place.num_requests == 0
        seed = place.next_seed() if place is not None else None
        wanted = None if place is None else place.max_tokens  # another request may come meanwhile
        journal = None if place is None else place.journal
        recalled = None if journal is None else journal.recall(prompt_ids)
        if recalled is not None:
            return recalled
        longest = await self._pool.max_model_len()
        room = min(self.config.max_completion_length, wanted or longest, longest - len(prompt_ids))
        if room < 1 and is_first:
            raise PromptTooLong(
                f"a prompt of {len(prompt_ids)} tokens leaves no room under the server's max_model_len {longest}; "
                "start the server with a longer --max-model-len, or drop the prompt"
            )
        if room < 1:
            return TurnRecord(prompt_ids, [], finish_reason="length")
        turn = await self._pool.generate(prompt_ids, self._sampling(room, seed))
        if journal is not None:
            journal.note(turn)
        return turn

    def compute_advantages(self, group: RolloutGroup) -> np.ndarray:
        """One advantage per rollout, in the order of `group.rewards` (NaN where no source scored)."""
        assert group.rewards is not None
        return group_advantages(group.rewards)

    async def setup(self) -> None:
        """Open what the hooks need; runs on the loop's event loop before the first prompt."""

    async def close(self) -> None:
        """Release what `setup` opened; also runs after a failure."""

    def is_terminated(self, rollout: Rollout) -> bool:
        """Whether the last turn ended with an end-of-sequence token rather than being cut."""
        last = rollout.turns[-1].output_ids if rollout.turns else []
        return bool(last) and last[-1] in self.eos_token_ids

    def _sampling(self, max_tokens: int, seed: int | None) -> SamplingParams:
        config = self.config
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            min_p=config.min_p or 0.0,
            repetition_penalty=config.repetition_penalty,
            num_logprobs=config.num_sampler_logprobs if config.score_centering else 0,
            seed=seed,
        )
