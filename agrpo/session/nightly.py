"""A recurring training: each night begins with the weights promoted last, and its own are promoted only if better."""

from dataclasses import dataclass, replace
from pathlib import Path

from agrpo.errors import BadInput
from agrpo.evaluation.statistics import compare
from agrpo.evaluation.tasks import held_out_rows
from agrpo.runfile import RunFile
from agrpo.session.check import check_input
from agrpo.session.evaluating import evaluate_model, evaluate_run, result_path
from agrpo.settings import ModelSettings
from agrpo.store import Store, evaluations, leases, runs
from agrpo.store.evaluations import Evaluation, Promotion

SPOILT_FACTOR = 1000.0
"""A simulated bad night multiplies the learning rate by this, and makes one step: from ruined weights no further one
might come, as answers that are all alike teach nothing."""


def check_night(config: RunFile) -> None:
    """Raise BadInput for what no night could use: what no run could, and prompts of the training to judge it by."""
    if config.evaluation.data is None:
        raise BadInput("evaluation.data: missing; a night is judged on held-out prompts, describe them there")
    check_input(config)
    held_out_rows(config)


@dataclass(frozen=True, slots=True)
class Night:
    """One night of a lineage."""

    lineage: str
    number: int
    """Place in the lineage, from 1."""
    run: RunFile
    """What is trained, under a name of its own."""
    baseline: str
    """The weights that it begins with, and must beat."""


def plan_night(store: Store, config: RunFile) -> Night:
    """The next night, or the one that was begun and not decided: the same name then continues its run."""
    decided = evaluations.promotions(store, config.name)
    promoted = [one.candidate for one in decided if one.promoted]
    model = ModelSettings(path=promoted[-1]) if promoted else config.model
    number = len(decided) + 1
    run = config.model_copy(update={"name": f"{config.name}-{number}", "model": model})
    return Night(config.name, number, run, model.path)


def begun_by(store: Store, lineage: str, flow_run_id: str) -> Promotion | None:
    """The decision on the night that this flow run has trained; None while there is none."""
    for promotion in reversed(evaluations.promotions(store, lineage)):
        if any(attempt.flow_run_id == flow_run_id for attempt in leases.attempts(store, promotion.run_id)):
            return promotion
    return None


def spoilt(night: Night) -> Night:
    """The same night with one step that ruins the weights: what a roll-back is for."""
    ruin = {"learning_rate": night.run.trainer.learning_rate * SPOILT_FACTOR, "warmup_steps": 0, "max_steps": 1}
    trainer = night.run.trainer.model_copy(update=ruin)
    return replace(night, run=night.run.model_copy(update={"trainer": trainer}))


def conclude_night(store: Store, night: Night) -> Promotion:
    """Evaluate the night's weights against the baseline on held-out prompts, decide once, and note the numbers.

    Both are asked what the run file says now, whatever it said when the night was begun. Raises BadInput when they were
    not asked the same.
    """
    for known in evaluations.promotions(store, night.lineage):
        if known.run_id == night.run.name:
            return known
    candidate = evaluate_run(store, night.run)
    baseline = evaluate_model(store, night.run, 0, night.baseline)
    if candidate.tasks != baseline.tasks:
        raise BadInput(
            f"evaluation.data: {night.run.name} and its baseline were not asked the same, as prompts or rewards have "
            "changed meanwhile; see that the rows are the same every time, then start the night again to judge it anew"
        )
    promotion = _judged(store, night, candidate, baseline)
    if promotion.promoted:
        _link(result_path(night.run.model_copy(update={"name": night.lineage})), Path(candidate.model))
    return evaluations.decide(store, promotion)


def give_up(store: Store, night: Night) -> Promotion | None:
    """Roll back a night whose training has failed, as it would block every later one; None when it may go on."""
    run = runs.find_run(store, night.run.name)
    if run is None or run.status != "failed":
        return None
    reason = f"rolled back, as its training failed: {(run.error or 'no reason').splitlines()[0]}"
    candidate = run.checkpoint_path or run.run_dir
    return evaluations.decide(store, Promotion(night.lineage, run.run_id, candidate, night.baseline, False, reason, {}))


def _judged(store: Store, night: Night, candidate: Evaluation, baseline: Evaluation) -> Promotion:
    new, old = evaluations.scores(store, candidate.id), evaluations.scores(store, baseline.id)
    both = sorted(new.keys() & old.keys())
    found = compare([new[row] for row in both], [old[row] for row in both])
    level = night.run.evaluation.level
    better = found.is_better(level)
    lead = found.difference
    says = (
        f"reward {lead.value:+.4f} (95 % interval {lead.low:+.4f} to {lead.high:+.4f}) on {found.num_prompts} held-out "
        f"prompts, p = {found.p_value:.4f} against {level:g}: {'promoted' if better else 'rolled back'}"
    )
    numbers = {"difference": lead.value, "low": lead.low, "high": lead.high, "p_value": found.p_value}
    numbers |= {"num_prompts": float(found.num_prompts), "level": level}
    return Promotion(night.lineage, night.run.name, candidate.model, night.baseline, better, says, numbers)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    made = link.with_name(".promoted")
    made.unlink(missing_ok=True)
    made.symlink_to(target.resolve())
    made.replace(link)
