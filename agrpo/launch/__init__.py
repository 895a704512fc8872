"""Starts, guards, adopts and ends the processes of a run (design.md, section 2); knows neither Prefect nor HTTP."""
