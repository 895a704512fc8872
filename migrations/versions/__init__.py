"""Schema revisions in order."""
