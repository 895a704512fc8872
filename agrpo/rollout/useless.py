"""When a whole epoch gave nothing that could be trained."""

from agrpo.errors import BadInput
from agrpo.rollout.ledger import Ledger


async def refuse_useless_epoch(ledger: Ledger, num_rows: int, epoch: int, last_words: str) -> None:
    """Raise BadInput when no prompt of an epoch that is all claimed gave rollouts with a reward, in any worker.

    Once a step is trained it is an event: then prompts and rewards can be used, and a judge may be away.
    """
    unusable = await ledger.skipped(epoch * num_rows, (epoch + 1) * num_rows)
    unusable.pop("outage", None)
    if sum(unusable.values()) < num_rows:
        return
    reasons = ", ".join(f"{number} {name}" for name, number in unusable.items())
    words = f"no prompt of epoch {epoch} can be used ({reasons})"
    if await ledger.has_trained():
        return await ledger.note("epoch_useless", f"{words}: nothing of it is trained. The last reason: {last_words}")
    raise BadInput(
        f"{words}; there is nothing to train on: look at filter_prompt, rewards, --max-model-len and the events of "
        f"the run. The last reason: {last_words}"
    )
