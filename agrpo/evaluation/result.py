"""What an evaluation came to."""

from dataclasses import asdict
from typing import Any

from agrpo.errors import BadInput
from agrpo.evaluation.statistics import mean_reward, pass_at_k
from agrpo.runfile import RunFile
from agrpo.store import Store, evaluations


def values_of(store: Store, run: RunFile, evaluation_id: int) -> dict[str, Any]:
    """Mean reward and pass@k with their intervals. Raises BadInput when no prompt was answered.

    `num_unscored` counts the answers that failed or that no source scored, of prompts that have others.
    """
    scores = list(evaluations.scores(store, evaluation_id).values())
    if not scores:
        raise BadInput("evaluation.data: no prompt could be answered; look at the server's max_model_len")
    threshold, most = run.evaluation.pass_reward, min(map(len, scores))
    ks = sorted({1, most} | {k for k in (2, 4, 8) if k < most})
    passes = {f"pass@{k}": asdict(pass_at_k(scores, k, threshold)) for k in ks}
    missing = sum(run.evaluation.num_samples - len(samples) for samples in scores)
    counts = {"num_prompts": len(scores), "num_samples": most, "num_unscored": missing}
    return {**counts, "reward": asdict(mean_reward(scores)), **passes}
