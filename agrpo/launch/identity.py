"""Who a child of a run is, as its command line says: `--store --run --token --process-id`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The attempt that a child works for, and its own number."""

    store_url: str
    run_id: str
    token: int
    """Fencing token of the attempt."""
    process_id: str
    """Under which the launcher registered it; "-" for a standby, which is told on stdin."""


def read_identity(module: str, description: str, arguments: Sequence[str]) -> Identity:
    """Read a child's command line. Exits with 2 and the usage when something is missing."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--store", required=True, help="URL of the store")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--token", required=True, type=int, help="fencing token of the attempt")
    parser.add_argument("--process-id", required=True, help="id under which the launcher registered it; -: on stdin")
    options = parser.parse_args(arguments)
    return Identity(options.store, options.run, options.token, options.process_id)
