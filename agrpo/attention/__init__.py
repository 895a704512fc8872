"""Attention over prefix trees: one seam, several backends, registered through transformers' AttentionInterface.

    attention = install(model);   model(input_ids, position_ids, **attention.prepare(row.layout, device))

A backend is one object (see `Backend`) and one line of `BACKENDS`. Gated DeltaNet layers are replaced by ones that
start each segment of the tree where its parent ended.
"""

from agrpo.attention.backends import BACKENDS, Backend, Needs, choose, load
from agrpo.attention.install import TreeAttention, install, needs_of, tree_attention

__all__ = ["BACKENDS", "Backend", "Needs", "TreeAttention", "choose", "install", "load", "needs_of", "tree_attention"]
