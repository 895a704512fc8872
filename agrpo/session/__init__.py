"""A run file turned into processes: what is started, where, in which order, and how the run ends."""
