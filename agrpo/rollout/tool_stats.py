"""Measurements of a group's tools and environments, under the names of docs/metrics.md."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from agrpo.environments.pool import Visit
from agrpo.metrics import weight_name
from agrpo.tools.tally import ToolTally, ToolUse


def tool_stats(tallies: Sequence[ToolTally], num_calls: int, num_failed: int) -> dict[str, float]:
    """Calls per completion, their failures and how long they took; a mean comes with how many calls it stands for.

    `num_calls` and `num_failed` are the rollouts' own counts, which a hook may keep by itself.
    """
    uses = [use for tally in tallies for use in tally.uses]
    stats = {
        "tools/call_frequency": num_calls / len(tallies),
        "tools/loop_exhausted_frac": float(np.mean([tally.exhausted for tally in tallies])),
        "tools/unknown_name_count": float(sum(tally.num_unknown for tally in tallies)),
        **_mean("tools/failure_frequency", [num_failed / num_calls] * num_calls if num_calls else []),
        **_mean("tools/latency_s", [use.seconds for use in uses if use.name is not None]),
        **_mean("tools/parallel_calls_mean", [n for tally in tallies for n in tally.num_calls_by_message]),
    }
    for name, own in _by_tool(uses).items():
        stats |= _mean(f"tools/{name}/latency_s", [use.seconds for use in own])
        stats[f"tools/{name}/call_count"] = float(len(own))
        stats[f"tools/{name}/failure_count"] = float(sum(use.failed for use in own))
    return stats


def environment_stats(visits: Sequence[Visit | None]) -> dict[str, float]:
    """How long environments took to begin and to score a rollout."""
    known = [visit for visit in visits if visit is not None]
    return {
        **_mean("env/reset_s", [visit.reset_s for visit in known]),
        **_mean("env/reward_s", [visit.reward_s for visit in known if visit.reward_s is not None]),
    }


def _by_tool(uses: Sequence[ToolUse]) -> dict[str, list[ToolUse]]:
    by_tool: defaultdict[str, list[ToolUse]] = defaultdict(list)
    for use in uses:
        if use.name is not None:
            by_tool[use.name].append(use)
    return by_tool


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: float(np.mean(values)), weight_name(name): float(len(values))} if values else {}
