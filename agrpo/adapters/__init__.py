"""Tasks and environments of other packages, one file each; the extra `adapters` installs two of them."""
