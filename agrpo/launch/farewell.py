"""What a child leaves behind when it goes: its own exit code and words, also where torchrun stands in between.

torchrun ends with 1 whatever one of its ranks ended with. The first rank that goes is believed: the others fail because
of it.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "AGRPO_FAREWELL"
"""Names the file, in the child's environment."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """The first that was left."""

    code: int
    words: str


def path_for(log_path: Path) -> Path:
    """Where a child leaves it: beside its log."""
    return log_path.with_name(log_path.name + ".farewell")


def leave(farewell: Farewell) -> None:
    """Leave it, unless another process of this child was first; a disk without room is no reason to fail otherwise."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    own = Path(f"{path}.{os.getpid()}")
    with suppress(OSError):
        own.write_text(json.dumps(asdict(farewell)))
        with suppress(FileExistsError):
            os.link(own, path)  # whole, or not there
    own.unlink(missing_ok=True)


def read(log_path: Path) -> Farewell | None:
    """What the child left, if it did."""
    try:
        return Farewell(**json.loads(path_for(log_path).read_text()))
    except FileNotFoundError:
        return None


def forget(log_path: Path) -> None:
    """A new process begins."""
    path_for(log_path).unlink(missing_ok=True)
