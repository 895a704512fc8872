"""Groups with tokens one can check by eye, and a run that is ready to take them."""

import numpy as np

from agrpo.records import GroupCommit, Rollout, ScoredRollout, TurnRecord
from agrpo.sequences import build_sequences
from agrpo.store import Attempt, Store, checkpoints, groups, leases, processes, runs
from agrpo.store.host import Holder, boot_id, host_name

DEAD = Holder(host_name(), pid=2**22 + 1, pid_started=1, boot_id=boot_id())
"""A process of this host whose pid no Linux kernel gives out."""
PROMPT = [1, 2, 3]


def start_run(store: Store, run_id: str = "small", holder: Holder = DEAD, max_attempts: int = 20) -> Attempt:
    """A run with its first attempt, by default of a launcher that is already dead."""
    config = {"name": run_id, "trainer": {"max_staleness": 4}}
    runs.create_run(store, run_id, config, "hash", f"runs/{run_id}", max_attempts)
    return leases.acquire(store, run_id, holder)


def name_checkpoint(attempt: Attempt, step: int, path: str = "checkpoint", digest: str = "digest") -> int:
    """Name a folder that nobody looks into as the checkpoint of a step; the trained prompt index."""
    index = runs.trained_prompt_index(attempt.store, attempt.run_id, step)
    checkpoints.place(attempt, step, path, index, lambda: digest)
    return index


def start_worker(attempt: Attempt, index: int = 0) -> int:
    """A registered worker; its number."""
    return processes.register(attempt, "worker", index, pid=10, pgid=10, pid_started=1, log_path="worker.log")


def turn(prompt_ids: list[int], output_ids: list[int]) -> TurnRecord:
    """A turn whose every generated token has log-probability -0.5."""
    return TurnRecord(prompt_ids=prompt_ids, output_ids=output_ids, output_log_probs=[-0.5] * len(output_ids))


def scored(turns: list[TurnRecord], reward: float = 1.0, advantage: float = 1.0) -> ScoredRollout:
    """A rollout with all its samples."""
    completion_ids = [token for one in turns for token in one.output_ids]
    rollout = Rollout(completion=[{"role": "assistant", "content": "x"}], completion_ids=completion_ids, turns=turns)
    return ScoredRollout(rollout, build_sequences(turns), {"exact": reward}, reward, advantage, terminated=True)


def two_samples() -> ScoredRollout:
    """A rollout that forks: its second turn does not continue the first, so it gives two samples."""
    return scored([turn(PROMPT, [4, 5]), turn([1, 2, 9], [6])])


def group(claim: groups.Claim, *rollouts: ScoredRollout, version: int = 0, reason: str | None = None) -> GroupCommit:
    """What a worker commits for a claim; without rollouts, two that answer [4, 5] and [6]."""
    return GroupCommit(
        group_id=claim.group_id,
        prompt_index=claim.prompt_index,
        row_index=claim.prompt_index,
        epoch=0,
        model_version=version,
        prompt=[{"role": "user", "content": str(claim.prompt_index)}],
        prompt_ids=PROMPT,
        rollouts=list(rollouts) or [scored([turn(PROMPT, [4, 5])]), scored([turn(PROMPT, [6])], 0.0, -1.0)],
        drop_reason=reason,
        stats={"duration_s": 0.25, "frequency": float(np.nan)},
    )


def generate(attempt: Attempt, worker: int, count: int, version: int = 0) -> list[groups.Claim]:
    """Claim and commit `count` small groups."""
    claims = groups.claim(attempt, worker, count)
    for claim in claims:
        groups.commit(attempt, group(claim, version=version))
    return claims
