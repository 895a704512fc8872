"""Ten million stored tokens: how long looking, verifying and resuming take, each as a process of its own.

A run of real processes makes the first steps and their checkpoint; then groups with full payloads are committed, and
steps are recorded and finished, as its worker and trainer would have done it, until the tokens are there. The last step
gets a copy of the checkpoint, so that the run resumes behind all of them.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from agrpo.records import GroupCommit, Rollout, ScoredRollout, TurnRecord
from agrpo.sequences import build_sequences
from agrpo.store import Attempt, checkpoints, groups, leases, policies, processes, runs, samples, steps
from agrpo.store.steps import StepRow
from agrpo.trainer.checkpoint import CheckpointShelf
from tests.worlds.kill_run import NAME, KillRun

Say = Callable[[str], None]

FIRST_STEPS = 3
TURN_TOKENS = 512
NUM_GENERATIONS = 8
GROUPS_PER_STEP = 8
NUM_TOP = 8
VOCAB = 150_000
PROMPT = [1, 2, 3]
NUM_ROLLOUTS_MADE = 64
"""Different rollouts; every group takes eight of them, and all are encoded and written anew."""


def large_store(num_tokens: int, say: Say) -> dict[str, float]:
    """Seconds of each command."""
    settings = {"num_rows": 100_000, "save_steps": FIRST_STEPS}
    with tempfile.TemporaryDirectory() as folder, KillRun(Path(folder), **settings) as run:
        _begin(run)
        begun = time.monotonic()
        _fill(run, num_tokens)
        size = sum(path.stat().st_size for path in (run.folder / "runs").glob("agrpo.db*"))
        say(f"{num_tokens} tokens written in {time.monotonic() - begun:.0f} s, {size / 1e6:.0f} MB")
        found = {"show_s": _command(run, "show"), "verify_s": _command(run, "verify")}
        found["resume_to_first_step_s"] = _resume(run)
        say(", ".join(f"{name} {seconds:.2f}" for name, seconds in found.items()))
        return found


def _begin(run: KillRun) -> None:
    """A few real steps and a checkpoint."""
    run.start()
    run.wait("a checkpoint", lambda: _cursor(run) is not None)
    runs.request(run.store, NAME, "stop")
    run.wait("the stop", lambda: run.launcher is not None and run.launcher.poll() is not None)


def _cursor(run: KillRun) -> checkpoints.CheckpointRow | None:
    return checkpoints.cursor(run.store, NAME)


def _fill(run: KillRun, num_tokens: int) -> None:
    attempt = leases.acquire(run.store, NAME, leases.this_process())
    pending = samples.pending(run.store, NAME)
    samples.drop(attempt, [sample.sample_id for sample in pending], "stale")
    worker = processes.register(attempt, "worker", 0, 1, 1, 1, "worker.log")
    digest = steps.digests(run.store, NAME)[run.step()]
    steps.finish(attempt, steps.last_recorded(run.store, NAME), digest, {})  # the stop may have met it half made
    rollouts = [_rollout(Random(seed)) for seed in range(NUM_ROLLOUTS_MADE)]
    for step in range(num_tokens // (GROUPS_PER_STEP * NUM_GENERATIONS * TURN_TOKENS)):
        _add_step(attempt, worker, rollouts, step, digest)
    processes.ended(attempt, worker, 0, "done")
    _copy_checkpoint(attempt, run)
    leases.release(attempt, "stopped")


def _add_step(attempt: Attempt, worker: int, rollouts: list[ScoredRollout], number: int, digest: str) -> None:
    """Groups, the step that trains them, and the version that it makes; its weights are those of the step before."""
    version = policies.current_version(attempt.store, attempt.run_id)
    for place, claim in enumerate(groups.claim(attempt, worker, GROUPS_PER_STEP)):
        first = number + place * NUM_GENERATIONS
        members = [rollouts[(first + member) % NUM_ROLLOUTS_MADE] for member in range(NUM_GENERATIONS)]
        groups.commit(attempt, _group(claim, members, version))
    ids = [sample.sample_id for sample in samples.pending(attempt.store, attempt.run_id)]
    step = steps.last_recorded(attempt.store, attempt.run_id) + 1
    steps.record(attempt, step, [StepRow(0, 0, place, id) for place, id in enumerate(ids)], version)
    steps.finish(attempt, step, digest, {})
    policies.publish(attempt, version + 1, step, digest)


def _group(claim: groups.Claim, rollouts: list[ScoredRollout], version: int) -> GroupCommit:
    return GroupCommit(
        group_id=claim.group_id,
        prompt_index=claim.prompt_index,
        row_index=claim.prompt_index,
        epoch=0,
        model_version=version,
        prompt=[{"role": "user", "content": str(claim.prompt_index)}],
        prompt_ids=PROMPT,
        rollouts=rollouts,
    )


def _rollout(random: Random) -> ScoredRollout:
    ids = [random.randrange(4, VOCAB) for _ in range(TURN_TOKENS)]
    top = [_top(random, token) for token in ids]
    turn = TurnRecord(PROMPT, ids, [at[token] for at, token in zip(top, ids, strict=True)], output_sampler_logprobs=top)
    rollout = Rollout([{"role": "assistant", "content": "x" * TURN_TOKENS}], ids, [turn])
    return ScoredRollout(rollout, build_sequences([turn]), {"reward": 1.0}, 1.0, 1.0, terminated=True)


def _top(random: Random, token: int) -> dict[int, float]:
    return {id: -random.expovariate(0.5) for id in [token, *random.sample(range(4, VOCAB), NUM_TOP - 1)]}


def _copy_checkpoint(attempt: Attempt, run: KillRun) -> None:
    """The checkpoint again, as that of the last step."""
    cursor, step = _cursor(run), steps.last_recorded(attempt.store, attempt.run_id)
    assert cursor is not None
    root = run.folder / "runs" / NAME / "checkpoints"
    shelf = CheckpointShelf(attempt, root)
    filled = shelf.begin(step) / f"checkpoint-{step}"
    shutil.copytree(root / Path(cursor.path).name, filled, ignore=shutil.ignore_patterns("complete.json"))
    state = json.loads((filled / "trainer_state.json").read_text())
    (filled / "trainer_state.json").write_text(json.dumps({**state, "global_step": step}))
    shelf.finish(step, filled)


def _command(run: KillRun, name: str) -> float:
    """The command as a person types it."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "flows", name, NAME, "--store", run.store_url, "--json"]
    said = subprocess.run(command, cwd=run.folder, capture_output=True, text=True)
    seconds = time.monotonic() - begun
    assert said.returncode == 0, said.stdout[-2000:] + said.stderr
    return seconds


def _resume(run: KillRun) -> float:
    """From the launcher's start to the end of the first further step; the server is warm."""
    step = run.step()
    begun = time.monotonic()
    run.start()
    run.wait(f"step {step + 1}", lambda: run.step() > step)
    return time.monotonic() - begun
