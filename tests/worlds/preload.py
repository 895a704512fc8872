"""Small C programs of this folder that are loaded into a process before its own libraries."""

import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp


@cache
def preload(name: str) -> str:
    """The path of a program, compiled once a session; for LD_PRELOAD."""
    library = Path(mkdtemp(prefix="agrpo-preload-")) / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return str(library)
