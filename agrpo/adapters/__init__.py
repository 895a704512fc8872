"""Tasks and environments of other packages, one file each; install them with `pip install agrpo[adapters]`."""
