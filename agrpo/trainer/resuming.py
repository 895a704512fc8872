"""What a checkpoint does not decide: how the optimizer goes on is for the settings of the run that loads it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

_SETTINGS = ("initial_lr", "weight_decay", "betas", "eps", "momentum")
"""Not everything else: some optimizers keep in their parameter groups what they have found out."""


@contextmanager
def own_settings(optimizer: Optimizer, scheduler: LambdaLR) -> Iterator[None]:
    """Load their states inside: a fork may have other settings than the run whose checkpoint it begins with.

    With the same settings nothing changes, to the bit.
    """
    own = [{name: group[name] for name in _SETTINGS if name in group} for group in optimizer.param_groups]
    rates = scheduler.base_lrs
    yield
    scheduler.base_lrs = rates
    scheduler._last_lr = [
        rate * factor(scheduler.last_epoch) for rate, factor in zip(rates, scheduler.lr_lambdas, strict=True)
    ]
    for group, settings, rate in zip(optimizer.param_groups, own, scheduler._last_lr, strict=True):
        group.update(settings, lr=rate)
