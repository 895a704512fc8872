"""Models that agrpo makes itself from a package, so that a first run needs no model hub."""

from collections.abc import Callable
from pathlib import Path

from agrpo.models import smollm2
from agrpo.settings import PREPARED_MODELS_FOLDER

_MAKERS: dict[str, Callable[[Path], None]] = {smollm2.NAME: smollm2.make}


def prepared_path(name: str) -> Path:
    """Where the prepared model lies once it is made."""
    return Path(PREPARED_MODELS_FOLDER) / name


def prepare(name: str) -> Path:
    """The folder of a prepared model, made now if it is not there yet. Raises BadInput when its package is missing."""
    folder = prepared_path(name)
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _MAKERS[name](folder)
    return folder
