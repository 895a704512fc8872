"""Which groups run when: claims prompts under the allowance, scores what comes back, commits what is finished.

    claim -> generate (slots) -> scoring queue -> reward functions -> commit

Every arrow ends in the store or in this process's hands for the length of one group: a kill loses only what is in
flight, and the claims of a dead worker are taken by the next one.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agrpo.allowance import GroupSize, admits
from agrpo.records import NO_REWARD
from agrpo.rollout.beats import LoopBeats
from agrpo.rollout.cap import ConcurrencyCap
from agrpo.rollout.finishing import finished
from agrpo.rollout.gauges import Gauges
from agrpo.rollout.groups import GroupFailed, GroupGenerator, root_error
from agrpo.rollout.hooks import close_after, set_up, wants
from agrpo.rollout.ledger import Admission, Ledger, View
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.members import GeneratedGroup, num_sample_tokens
from agrpo.rollout.pool import ServerPool
from agrpo.rollout.prompts import Prompt, PromptSource
from agrpo.rollout.scoring import Scorer, Unscored
from agrpo.rollout.slots import Slots
from agrpo.rollout.stats import Times
from agrpo.rollout.useless import refuse_useless_epoch
from agrpo.store.groups import Claim

T = TypeVar("T")

REFRESH_S = 0.25
BEAT_S = 2.0
DATA_ENDED_S = 2.0
"""After the last prompt: how often to look for claims that a dead worker left."""
WINDOW_S = 5.0
NUM_SCORERS = 16
"""Groups scored at the same time, and groups that may wait for it."""
NUM_ROWS_AHEAD = 16
"""Rows of a stream read ahead of the claims."""

WAITS_FOR_TRAINER = "waiting for the trainer: the token allowance is held"
WAITS_FOR_SERVER = "waiting for a healthy server with confirmed weights"


class Dispatcher:
    """The worker's loops: generation, scoring, and the books kept with the store."""

    def __init__(
        self,
        loop: AsyncRolloutLoop,
        prompts: PromptSource,
        scorer: Scorer,
        pool: ServerPool,
        ledger: Ledger,
        generator: GroupGenerator,
        slots: Slots,
    ) -> None:
        self._loop = loop
        self._prompts = prompts
        self._scorer = scorer
        self._pool = pool
        self._ledger = ledger
        self._generator = generator
        self._slots = slots
        self._cap = ConcurrencyCap(slots.limit)
        self._gauges = Gauges()
        self._group_size = GroupSize()
        self._num_in_flight = 0
        self._data_ended = False
        self._num_claimed = 0
        self._beats = LoopBeats(NUM_SCORERS * scorer.longest_call_s)
        self._scoring: asyncio.Queue[tuple[GeneratedGroup, float]] = asyncio.Queue(NUM_SCORERS)
        self._changed = asyncio.Event()
        generator.on_back = self._changed.set
        self._rows = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._view: View

    async def run(self) -> None:
        """Work until cancelled. Raises what stopped it, as an exception group."""
        await self._refresh()
        try:
            await set_up(self._loop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_books())
                tasks.create_task(self._measure())
                tasks.create_task(self._warn_of_servers())
                for _ in range(NUM_SCORERS):
                    tasks.create_task(self._score_groups())
                await self._generate_groups(tasks)
        except BaseException as error:
            self._rows.shutdown(wait=False, cancel_futures=True)
            await close_after(self._loop, root_error(error))
            raise

    async def _generate_groups(self, tasks: asyncio.TaskGroup) -> None:
        held_since: float | None = None
        while True:
            waits_for = self._waits_for()
            self._beats.generation(waits_for or f"{self._num_in_flight} groups in flight")
            if waits_for == WAITS_FOR_TRAINER:
                held_since = held_since or time.monotonic()
            elif held_since is not None:
                self._gauges.read("rollout/backpressure_s", time.monotonic() - held_since)
                held_since = None
            if waits_for is not None:
                await self._wait_for_change()
            elif not await self._start_group(tasks):
                await asyncio.sleep(DATA_ENDED_S)

    def _waits_for(self) -> str | None:
        """Why no further group may start now, in words."""
        if not self._view.wants_work:
            return "the run was asked to stop"
        if self._view.allowance_tokens is None:
            return "waiting for the trainer: it has set no token allowance yet"
        if not self._pool.has_usable:
            return WAITS_FOR_SERVER
        if self._scoring.full():
            return "waiting for reward functions"
        if not self._generator.has_room():
            return "all rollout slots are in use"
        return None if self._is_open(self._view.num_elsewhere or 0) else WAITS_FOR_TRAINER

    async def _start_group(self, tasks: asyncio.TaskGroup) -> bool:
        """Claim the next prompt and set it going; False when there is none for now."""
        self._num_in_flight += 1
        wanted = max(self._view.next_prompt_index, self._num_claimed) + NUM_ROWS_AHEAD
        stop_index = await self._on_rows_thread(lambda: self._prompts.stop_index(wanted))
        claims = await self._ledger.claim(1, stop_index, self._admission(), self._prompts.take_positions())
        if not claims:
            self._num_in_flight -= 1
            await self._refresh()  # other workers may have claimed every row that this one has read
            is_final = self._prompts.num_rows is not None
            if is_final and not self._data_ended:
                await self._ledger.note("data_ended", f"every prompt below index {stop_index} is claimed")
            self._data_ended = is_final
            await self._ledger.say(self._admission())
            return not is_final
        self._num_claimed = max(self._num_claimed, claims[0].prompt_index + 1)
        if self._view.num_elsewhere is not None:
            await self._refresh()  # they may be claiming too: all together stay under the allowance
        prompt = await self._on_rows_thread(lambda: self._prompts.prompt(claims[0].prompt_index))
        if wants(self._loop, prompt):
            tasks.create_task(self._generate_group(claims[0], prompt))
        else:
            await self._skip(claims[0], prompt, "filtered", None)
        return True

    async def _generate_group(self, claim: Claim, prompt: Prompt) -> None:
        try:
            generated = await self._generator.generate(prompt, claim.group_id, lambda: self._view.policy_version)
        except GroupFailed as failure:
            await self._skip(claim, prompt, failure.reason, str(failure))
            return
        for _ in generated.members:
            self._cap.completed()
        for words in generated.failures:
            await self._ledger.note("rollout_failed", f"row {prompt.row_index} goes on without a rollout: {words}")
        complete_at = time.monotonic()
        await self._scoring.put((generated, complete_at))
        self._gauges.read("rollout/score_block_s", time.monotonic() - complete_at)

    async def _skip(self, claim: Claim, prompt: Prompt, reason: str, words: str | None) -> None:
        message = None if words is None else f"prompt {prompt.prompt_index} (row {prompt.row_index}): {words}"
        await self._ledger.skip(claim.group_id, reason, message)
        self._gauges.count(f"rollout/{reason}_count")
        await self._settle()
        await self._look_back(prompt.epoch, words or reason)

    async def _look_back(self, epoch: int, last_words: str) -> None:
        num_rows = self._prompts.num_rows
        if num_rows is not None and self._view.next_prompt_index >= (epoch + 1) * num_rows:
            await refuse_useless_epoch(self._ledger, num_rows, epoch, last_words)

    async def _score_groups(self) -> None:
        while True:
            generated, complete_at = await self._scoring.get()
            with self._beats.scoring(generated.group.group_id):
                await self._score_group(generated, complete_at)

    async def _score_group(self, generated: GeneratedGroup, complete_at: float) -> None:
        begin = time.monotonic()
        try:
            rewards = await self._scorer.score(generated.group)
        except Unscored as outage:
            rewards = None
            row_index = generated.prompt.row_index
            await self._ledger.note("unscored", f"row {row_index} is left out: no answer from {outage}")
        times = Times(generated.seconds, score_wait_s=begin - complete_at, score_s=time.monotonic() - begin)
        commit = finished(generated, self._loop, rewards, times)
        await self._ledger.commit(commit)
        self._group_size.add(num_sample_tokens(generated.group))
        await self._settle()
        if commit.drop_reason == NO_REWARD:
            await self._look_back(commit.epoch, "no reward function, environment or agent gave a reward")

    async def _settle(self) -> None:
        """A group has left this worker's hands: look at the store again before saying so.

        While others may still start the trainer waits for them anyway, and is told with the next claim.
        """
        await self._refresh()
        self._num_in_flight -= 1
        self._changed.set()
        if not (admission := self._admission()).open:
            await self._ledger.say(admission)

    async def _keep_books(self) -> None:
        beaten_at, written_at = 0.0, time.monotonic()
        said: Admission | None = None
        while True:
            if self._admission() != said:
                said = self._admission()
                await self._ledger.say(said)
            await asyncio.sleep(REFRESH_S)
            await self._refresh()
            now = time.monotonic()
            if now - beaten_at >= BEAT_S:
                await self._ledger.beat(self._beats.take())
                beaten_at = now
            if now - written_at >= WINDOW_S:
                await self._write_window()
                written_at = now

    async def _write_window(self) -> None:
        self._gauges.total("rollout/vllm_retry_count", self._pool.num_retries)
        self._gauges.total("rollout/reward_retry_count", self._scorer.num_retries)
        self._gauges.total("rollout/rollout_retry_count", self._generator.num_retries)
        self._gauges.total("tools/abandoned_thread_count", self._loop.threads.num_abandoned)
        await self._ledger.window(self._gauges.take())

    async def _refresh(self) -> None:
        self._view = await self._ledger.view()
        await self._pool.update(self._view.servers, self._view.policy_version)
        self._gauges.read("rollout/concurrency", self._slots.num_used)
        self._gauges.read("rollout/concurrency_cap", self._slots.limit)
        self._gauges.read("rollout/score_queue_size", self._scoring.qsize())
        self._changed.set()

    async def _measure(self) -> None:
        """Read the servers' load and move the cap on rollouts in flight."""
        started = False
        while True:
            load = await self._pool.load()
            if load is not None:
                if not started and load.kv_cache_tokens:
                    self._cap.start(load.kv_cache_tokens, await self._pool.max_model_len())
                    started = True
                self._cap.observe(load)
                self._slots.limit = self._cap.value
                self._gauges.read("rollout/vllm_kv_cache_usage_frac", load.kv_cache_frac)
                self._gauges.read("rollout/vllm_running_requests", load.num_running)
                self._gauges.read("rollout/vllm_queued_requests", load.num_queued)
                self._gauges.total("rollout/vllm_preemption_count", load.num_preemptions)
            await asyncio.sleep(WINDOW_S)

    async def _warn_of_servers(self) -> None:
        """Once, when the first server can be used."""
        for words in await self._pool.shortcomings(self._loop.config.top_k > 0):
            await self._ledger.note("server_warning", words)
            print(words, file=sys.stderr, flush=True)

    def _is_open(self, num_elsewhere: int) -> bool:
        """Whether the allowance lets another group start, beside so many in other workers."""
        view, own = self._view, self._num_in_flight
        return (
            view.wants_work
            and view.allowance_tokens is not None
            and admits(view.allowance_tokens, view.pending_tokens, own, self._group_size.mean, num_elsewhere)
        )

    def _admission(self) -> Admission:
        """Closed only for good, not for groups that others still generate: else the trainer could believe two workers
        that each wait for the other's last group."""
        return Admission(self._num_in_flight, self._is_open(0), self._data_ended, self._view.allowance_step)

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _on_rows_thread(self, function: Callable[[], T]) -> T:
        """Read the dataset; a stream that is read over many rows is alive as long as rows come."""
        reading = asyncio.get_running_loop().run_in_executor(self._rows, function)
        num_read = self._prompts.num_read
        while not (await asyncio.wait([reading], timeout=BEAT_S))[0]:
            if num_read != (num_read := self._prompts.num_read):
                self._beats.generation(f"reading the dataset: {num_read} rows")
        return reading.result()
