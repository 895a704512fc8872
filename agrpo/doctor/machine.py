"""Memory, disk, GPUs, ports."""

import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from agrpo.doctor.finding import Finding

_GB = 1e9
_LITTLE_MEMORY_GB, _LITTLE_DISK_GB, _LITTLE_SHARED_GB = 6.0, 5.0, 0.5
PREFECT_PORT = 4200


def check_memory() -> Finding:
    """Memory that a server and a trainer could take now."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_gb = int(fields["MemAvailable"].split()[0]) * 1024 / _GB
    if free_gb < _LITTLE_MEMORY_GB:
        do = "end other programs, or use a smaller model and servers.kv_cache_gb=1"
        return Finding("memory", "warning", f"{free_gb:.1f} GB are free", do)
    return Finding("memory", "ok", f"{free_gb:.1f} GB are free")


def check_disk(folder: Path) -> Finding:
    """Room for checkpoints, each of which holds the model and twice its size of optimizer state."""
    there = next(parent for parent in [folder.absolute(), *folder.absolute().parents] if parent.exists())
    free_gb = shutil.disk_usage(there).free / _GB
    if free_gb < _LITTLE_DISK_GB:
        do = "make room, set trainer.save_total_limit, or give another folder in output"
        return Finding("disk", "warning", f"{free_gb:.1f} GB are free in {there}", do)
    return Finding("disk", "ok", f"{free_gb:.1f} GB are free in {there}")


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Where weights pass from trainer to servers on a CPU."""
    if not folder.is_dir():
        return Finding("shared memory", "warning", f"there is no {folder}", "weights go through the run's folder")
    free_gb = shutil.disk_usage(folder).free / _GB
    if free_gb < _LITTLE_SHARED_GB:
        do = "give a container more of it (docker: --shm-size); weights go through the run's folder meanwhile"
        return Finding("shared memory", "warning", f"{free_gb:.2f} GB are free in {folder}", do)
    return Finding("shared memory", "ok", f"{free_gb:.1f} GB are free in {folder}")


def check_gpus(there: Sequence[int], torch_version: str | None) -> Finding:
    """GPUs, and whether this torch was built for them."""
    if not there:
        return Finding("gpus", "ok", "none: everything runs on CPUs")
    if torch_version is None or "+cpu" in torch_version:
        do = "install the GPU build: EXTRAS=gpu,models,dev make setup"
        found = "no torch" if torch_version is None else f"torch {torch_version}, a CPU build"
        return Finding("gpus", "problem", f"{len(there)} GPUs, but {found}", do)
    return Finding("gpus", "ok", f"{len(there)} GPUs, torch {torch_version}")


def check_port(port: int = PREFECT_PORT) -> Finding:
    """Whether Prefect's UI can be shown where people look for it."""
    if is_taken("127.0.0.1", port):
        do = "if that is not Prefect's server, choose another port: agrpo ui --port 4300"
        return Finding("port", "warning", f"127.0.0.1:{port} is in use", do)
    return Finding("port", "ok", f"127.0.0.1:{port} is free for agrpo ui")


def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there; connections that a killed server has left behind do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def check_server(url: str, timeout_s: float = 5.0) -> Finding:
    """Whether a server given by URL answers."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=timeout_s):
            return Finding("server", "ok", f"{url} is healthy")
    except (urllib.error.URLError, OSError, ValueError) as error:
        return Finding("server", "problem", f"{url} does not answer: {error}", "start it, or mend servers.urls")
