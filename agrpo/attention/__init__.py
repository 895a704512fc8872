"""Attention over prefix trees: one seam, several backends, registered through transformers' AttentionInterface.

    install(model) -> backend -> backend.prepare(layout, device) -> model(..., tree=prepared)

A backend is one module with `NAME`, `refusal`, `prepare` and `attend`, and one line of `BACKENDS`.
"""

from agrpo.attention.backends import BACKENDS, Backend, Needs, choose, load
from agrpo.attention.install import install

__all__ = ["BACKENDS", "Backend", "Needs", "choose", "install", "load"]
