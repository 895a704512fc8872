"""The table of attention backends, and which one a model gets when nobody names one."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from agrpo.errors import BadInput
from agrpo.trees import TreeLayout


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model asks of its attention."""

    device: torch.device
    dtype: torch.dtype
    softcap: bool = False
    """Scores are bent by tanh (Gemma 2)."""
    head_size: int = 64


class Backend(Protocol):
    """What the module of a backend offers."""

    def refusal(self, needs: Needs) -> str | None:
        """Why it cannot serve this model, in one sentence; None when it can."""

    def prepare(self, layout: TreeLayout, device: torch.device) -> Any:
        """What `attend` needs of a row, made once a row."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tree: Any,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Attention of every token over its own path, [1, heads, tokens, size] in and out."""


BACKENDS = {
    "tree_flash4": "agrpo.attention.hub:FLASH4",
    "tree_flash3": "agrpo.attention.hub:FLASH3",
    "tree_aiter": "agrpo.attention.hub:AITER",
    "tree_varlen": "agrpo.attention.tree_varlen:BACKEND",
    "tree_flex": "agrpo.attention.tree_flex:BACKEND",
    "tree_cpu": "agrpo.attention.tree_cpu:BACKEND",
}
"""Name -> where it is, the one tried first at the top."""


def load(name: str) -> Backend:
    """The backend with this name, or the one at an import path `package.module:object`.

    Raises:
        BadInput: nobody knows the name.
    """
    module, _, attribute = BACKENDS.get(name, name).partition(":")
    if not attribute:
        known = ", ".join(BACKENDS)
        raise BadInput(f"attention backend {name!r} is unknown; use one of {known} or package.module:object")
    backend: Backend = getattr(import_module(module), attribute)
    return backend


def choose(needs: Needs, name: str | None = None) -> str:
    """The named backend, or the first of the table that can serve.

    Raises:
        BadInput: the named one cannot serve this model, or none can.
    """
    reasons = {}
    for candidate in [name] if name else BACKENDS:
        reason = load(candidate).refusal(needs)
        if reason is None:
            return candidate
        reasons[candidate] = reason
    raise BadInput("; ".join(f"attention backend {key!r} refuses: {reason}" for key, reason in reasons.items()))
