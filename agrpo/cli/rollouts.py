"""`agrpo rollouts RUN`: the conversations of a run, with their rewards and what became of them."""

import dataclasses
import json

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from agrpo.cli.numbers import number
from agrpo.cli.stores import opened
from agrpo.records import Message
from agrpo.store import conversations, runs
from agrpo.store.conversations import Fate, StoredRollout

_SHOWN = 20


def print_rollouts(
    store_url: str | None,
    run_id: str,
    step: int | None = None,
    group: int | None = None,
    status: Fate | None = None,
    limit: int | None = None,
    as_json: bool = False,
) -> None:
    """Print rollouts to read, the last 20 unless told otherwise; as JSON one a line, and all of them."""
    with opened(store_url) as store:
        runs.get_run(store, run_id)
        found = conversations.find(store, run_id, step, group, status, limit or (None if as_json else _SHOWN))
    if as_json:
        for rollout in found:
            print(json.dumps(dataclasses.asdict(rollout)))
        return
    console = Console()
    for rollout in found:
        _print(console, rollout)
    if not found:
        console.print("no such rollout")
    elif limit is None and len(found) == _SHOWN:
        console.print(f"the last {_SHOWN} rollouts; more with --limit, all with --json", style="dim")


def _print(console: Console, rollout: StoredRollout) -> None:
    member = "no rollout" if rollout.member is None else f"rollout {rollout.member}"
    console.print(Rule(f"group {rollout.group_id}, prompt {rollout.prompt_index}, {member}", align="left"))
    console.print(_fate(rollout), highlight=False, markup=False)
    if rollout.member is not None:
        console.print(_numbers(rollout), highlight=False, markup=False)
    for message in [*rollout.prompt, *rollout.completion]:
        console.print(Text.assemble((f"{message.get('role')}: ", "bold"), _words(message)), soft_wrap=True)


def _fate(rollout: StoredRollout) -> str:
    if rollout.status == "trained":
        return f"trained in step {', '.join(map(str, rollout.steps))}"
    return rollout.status if rollout.reason is None else f"{rollout.status}: {rollout.reason}"


def _numbers(rollout: StoredRollout) -> str:
    parts = ", ".join(f"{name} {number(value)}" for name, value in rollout.rewards.items())
    end = "ended" if rollout.terminated else "cut"
    return (
        f"reward {number(rollout.reward)} ({parts or 'no source'}), advantage {number(rollout.advantage)}, "
        f"{rollout.num_generated} tokens in {rollout.num_turns} turns, {end}, "
        f"policy version {', '.join(rollout.token_versions) or rollout.version}"
    )


def _words(message: Message) -> str:
    """What a message says, calls of tools included."""
    said = message.get("content") or ""
    calls = message.get("tool_calls") or []
    text = said if isinstance(said, str) else json.dumps(said)
    return "\n".join([text, *(f"calls {json.dumps(call.get('function', call))}" for call in calls)]).strip("\n")
