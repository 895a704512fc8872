"""Rows as prefix trees: a token shared by several samples is forwarded once."""

from agrpo.trees.layout import Block, Gathered, Segments, TreeLayout, lay_out
from agrpo.trees.planner import Limits, MicroBatch, Sample, StepPlan, plan_step
from agrpo.trees.rows import TreeRow, pack
from agrpo.trees.trie import Fork, PrefixTrie, sort_key

__all__ = [
    "Block",
    "Fork",
    "Gathered",
    "Limits",
    "MicroBatch",
    "PrefixTrie",
    "Sample",
    "Segments",
    "StepPlan",
    "TreeLayout",
    "TreeRow",
    "lay_out",
    "pack",
    "plan_step",
    "sort_key",
]
