"""Starts, guards, adopts and ends the processes of a run; knows neither Prefect nor HTTP."""
