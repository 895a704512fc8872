"""From an import path in a run file to the function it names."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agrpo.errors import BadInput


def resolve_callable(path: str) -> Callable[..., Any]:
    """The function that "package.module:name" or "folder/file.py:name" means.

    Files are found from the working directory and imported under the name that a spawned process can import again,
    so that what is resolved here can be pickled. Raises BadInput with the path and what is wrong with it.
    """
    place, colon, name = path.partition(":")
    if not colon or not place or not name:
        raise BadInput(f"'{path}' is no import path; write package.module:name or folder/file.py:name")
    module = _from_file(path, Path(place)) if place.endswith(".py") else _from_package(path, place)
    if name not in vars(module):
        near = difflib.get_close_matches(name, list(vars(module)), n=1)
        raise BadInput(f"'{path}': {place} has no '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    found = vars(module)[name]
    if not callable(found):
        raise BadInput(f"'{path}' is a {type(found).__name__}, not a function; name a function")
    return found  # type: ignore[no-any-return]


def _from_package(path: str, module_name: str) -> ModuleType:
    _on_path(Path.cwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing import inside the module is the user's bug and keeps its traceback.
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise BadInput(f"'{path}': there is no module '{error.name}'; install it, or start in its folder") from None


def _from_file(path: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise BadInput(
            f"'{path}': no file {file} (looked in {Path.cwd()}); give its path from here, or an absolute one"
        )
    folder, name = _importable(file.resolve())
    _on_path(folder)
    module = importlib.import_module(name)
    if module.__file__ is None or not os.path.samefile(module.__file__, file):
        raise BadInput(f"'{path}': another module named '{name}' ({module.__file__}) is in the way; rename the file")
    return module


def _importable(file: Path) -> tuple[Path, str]:
    """Folder for sys.path and module name: dotted from the working directory where that is possible."""
    here = Path.cwd().resolve()
    if file.is_relative_to(here):
        parts = file.relative_to(here).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            return here, ".".join(parts)
    return file.parent, file.stem


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
