"""What a checkpoint does not decide: how the optimizer goes on is for the settings of the run that loads it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

_SETTINGS = ("initial_lr", "weight_decay", "betas", "eps", "momentum")
"""Not everything else: some optimizers keep in their parameter groups what they have found out."""


@contextmanager
def own_settings(optimizer: Optimizer, scheduler: LRScheduler) -> Iterator[None]:
    """Load their states inside: a fork may have other settings than the run whose checkpoint it begins with.

    With the same settings nothing changes, to the bit.
    """
    own = [{name: group[name] for name in _SETTINGS if name in group} for group in optimizer.param_groups]
    rates = scheduler.base_lrs
    yield
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
    scheduler.base_lrs = rates
    if isinstance(scheduler, LambdaLR):  # its rates follow from the number of the step; others go on from the last ones
        scheduler.last_epoch -= 1
        scheduler.step()
