"""When a run's policy is to be evaluated while training goes on."""

from agrpo.runfile import RunFile
from agrpo.store import Store, evaluations, policies


def name_in_training(run_id: str, step: int) -> str:
    """What an evaluation in training calls its weights: they are in no folder."""
    return f"{run_id}, training at step {step}"


def due_step(store: Store, run: RunFile) -> int | None:
    """The published step to evaluate now: the newest, once it has passed a multiple that no evaluation has reached.

    What somebody asks for beside training, perhaps on other prompts, does not count.
    """
    every = run.evaluation.steps
    published = policies.policies(store, run.name)
    if every is None or not published:
        return None
    done = [one for one in evaluations.of_run(store, run.name) if one.model == name_in_training(run.name, one.step)]
    newest, reached = published[-1].step, max((one.step for one in done), default=0)
    return newest if newest // every > reached // every else None
