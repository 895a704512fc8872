"""`python -m flows` is `agrpo`."""

from flows.cli import main

main()
