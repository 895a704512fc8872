"""Environments: objects with a state of their own for every rollout, whose public methods are tools."""
