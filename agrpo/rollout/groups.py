"""One prompt to G rollouts, and G rollouts with their rewards to what the store keeps."""

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agrpo.environments.pool import EnvironmentPool
from agrpo.errors import MalformedAnswer, PromptTooLong, RequestRefused
from agrpo.rollout.hooks import rollout_of
from agrpo.rollout.journal import Drafts, GroupJournal, open_journal
from agrpo.rollout.loop import AsyncRolloutLoop, RolloutPlace, rollout_place
from agrpo.rollout.members import GeneratedGroup, Member, group_of
from agrpo.rollout.outages import is_outage
from agrpo.rollout.prompts import Prompt
from agrpo.rollout.retries import is_passing, outlast
from agrpo.rollout.slots import Slots

REFUSAL_WINDOW_S = 0.25
REFUSAL_WINDOW_FRAC = 0.1
"""How long the first rollout of a group goes ahead of the others, at least and as a share of what rollouts take: a
refused prompt is refused within it, later by a busy server."""
MAX_HELD_SHARE = 0.25
"""Slots that may be lent to further groups meanwhile."""
AHEAD_SHARE = 0.125
"""Rollouts that may wait for a slot, as a share of the slots: when many end together no slot waits for a claim."""
_MEMORY = 0.1
"""Weight of the newest rollout in what rollouts usually take."""


class GroupFailed(Exception):
    """A group that gives no rollouts, for the reason kept in the store; the message is the server's or hook's."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class GroupGenerator:
    """Generates groups, each rollout in a slot of its own."""

    def __init__(
        self,
        loop: AsyncRolloutLoop,
        run_id: str,
        slots: Slots,
        tools: Sequence[Callable[..., Any]] = (),
        environments: EnvironmentPool | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        """`drafts` keeps turns before their group is finished; None: a group that is interrupted begins anew."""
        self.num_retries = 0
        self.num_open = 0
        """Rollouts of started groups that have not come back, with or without a slot."""
        self.on_back: Callable[[], None] = lambda: None
        """Called whenever a rollout has come back: there may be room."""
        self._num_held = 0
        self._usual_s = 0.0
        self._loop = loop
        self._run_id = run_id
        self._slots = slots
        self._tools = list(tools)
        self._environments = environments
        self._has_tools = bool(tools) or environments is not None
        self._drafts = drafts

    async def generate(self, prompt: Prompt, group_id: int, version: Callable[[], int]) -> GeneratedGroup:
        """The rollouts of a prompt; `version` is asked when the first one starts.

        A failed rollout leaves the group to the others. Raises GroupFailed when fewer than two can come back.
        """
        num_generations = self._loop.config.num_generations
        versions: list[int] = []
        failures: list[GroupFailed] = []
        tasks: list[asyncio.Task[Member | None]] = []
        first_begins = asyncio.Event()
        self.num_open += num_generations

        def start(number: int) -> RolloutPlace:
            versions.append(version())
            if number == 0:
                first_begins.set()
            own = None if journal is None else journal.member(number, versions[-1])
            return RolloutPlace(self._run_id, prompt.prompt_index, number, journal=own, row=prompt.row)

        try:
            journal = await self._open_journal(group_id, version())
            async with asyncio.TaskGroup() as members:
                for number in range(num_generations):
                    member = self._member(prompt, group_id, partial(start, number), failures)
                    tasks.append(members.create_task(member))
                    tasks[-1].add_done_callback(self._close_one)
                    if number == 0:
                        await self._let_go_ahead(tasks[0], first_begins, num_generations - 1)
        except BaseExceptionGroup as errors:
            raise root_error(errors) from errors
        finally:
            self.num_open -= num_generations - len(tasks)
        results = [task.result() for task in tasks]
        came_back = [member for member in results if member is not None]
        began = versions[0] if journal is None else journal.began(versions[0])
        group = group_of(prompt, group_id, began, came_back)
        # A loop may bring tools of its own, as those of agents do: the first call tells.
        self._has_tools = self._has_tools or any(group.tool_call_counts)
        return GeneratedGroup(prompt, group, came_back, [str(failure) for failure in failures], self._has_tools)

    def has_room(self) -> bool:
        """Whether another group would find a free slot, or is wanted for the next one."""
        limit = self._slots.limit
        return self.num_open - min(self._num_held, int(limit * MAX_HELD_SHARE)) < limit + int(limit * AHEAD_SHARE)

    async def _open_journal(self, group_id: int, version: int) -> GroupJournal | None:
        if self._drafts is None:
            return None
        return await open_journal(self._drafts, group_id, version, self._loop.config.max_staleness)

    async def _let_go_ahead(self, first: asyncio.Task[Member | None], begins: asyncio.Event, num_others: int) -> None:
        """Wait until the first rollout has a slot, and a while longer or for its end."""
        first.add_done_callback(lambda _: begins.set())
        await begins.wait()
        self._num_held += num_others
        try:
            await asyncio.wait([first], timeout=max(REFUSAL_WINDOW_S, REFUSAL_WINDOW_FRAC * self._usual_s))
        finally:
            self._num_held -= num_others

    def _close_one(self, task: asyncio.Task[Member | None]) -> None:
        self.num_open -= 1
        self.on_back()

    async def _member(
        self, prompt: Prompt, group_id: int, start: Callable[[], RolloutPlace], failures: list[GroupFailed]
    ) -> Member | None:
        """One rollout in its slot; None when it failed and the group can do without it."""
        async with self._slots:
            place = start()
            begin = time.monotonic()
            try:
                member = await self._outlast(prompt, group_id, place, begin)
                self._usual_s += _MEMORY * (member.seconds - self._usual_s)
                return member
            except Exception as error:
                failure = _failure(error)
                if failure is None:
                    raise
                failures.append(failure)
                refused_first = place.num_requests <= 1 and isinstance(error, RequestRefused | PromptTooLong)
                if (refused_first and self._begin_alike()) or self._loop.config.num_generations - len(failures) < 2:
                    raise failure from error
                return None
            finally:
                if place.journal is not None:
                    place.journal.close()

    def _begin_alike(self) -> bool:
        """Whether the rollouts of a group begin with the row's own prompt: what refuses one of them refuses all."""
        return self._environments is None and type(self._loop).generate_one is AsyncRolloutLoop.generate_one

    async def _outlast(self, prompt: Prompt, group_id: int, place: RolloutPlace, begin: float) -> Member:
        """One rollout, generated again from its start where that may help."""

        async def attempt() -> Member:
            place.begin_again()
            rollout_place.set(place)
            try:
                return await self._once(prompt, group_id, place, begin)
            except Exception as error:
                if place.journal is not None and not is_passing(error):
                    place.journal.forget()
                raise

        try:
            return await outlast(attempt, self._count_retry)
        except Exception as error:
            error.add_note(f"in generate_one for row {prompt.row_index}: prompt {str(prompt.messages)[:500]}")
            raise

    def _count_retry(self) -> None:
        self.num_retries += 1

    async def _once(self, prompt: Prompt, group_id: int, place: RolloutPlace, begin: float) -> Member:
        if self._environments is None:
            messages = copy.deepcopy(prompt.messages)
            rollout = await rollout_of(self._loop, messages, list(self._tools), group_id)
            return Member(prompt.messages, rollout, time.monotonic() - begin, place.tally, None)
        async with self._environments.visit(prompt.row, prompt.messages, place.tally) as visit:
            tools = [*self._tools, *visit.environment.tools]
            rollout = await rollout_of(self._loop, copy.deepcopy(visit.messages), tools, group_id)
        return Member(visit.messages, rollout, time.monotonic() - begin, place.tally, visit)


def root_error(errors: BaseException) -> BaseException:
    """The one error inside nested exception groups that says most: a bug before an outage, a failure before both."""
    if not isinstance(errors, BaseExceptionGroup):
        return errors
    leaves = [root_error(error) for error in errors.exceptions]
    return min(leaves, key=lambda leaf: (isinstance(leaf, GroupFailed), is_outage(leaf)))


def _failure(error: Exception) -> GroupFailed | None:
    """What an error says of one rollout; None for a bug, and for servers that are gone for good."""
    match error:
        case PromptTooLong():
            return GroupFailed("too_long", str(error))
        case RequestRefused() | MalformedAnswer():
            return GroupFailed("failed", str(error))
        case _ if is_passing(error):
            return GroupFailed("outage", repr(error))
    return None
