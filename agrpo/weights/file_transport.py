"""Weights by file: written once, read by every server through our vLLM plugin."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import torch
from safetensors.torch import save_file

from agrpo.weights.phases import Phases

SHARED_MEMORY = Path("/dev/shm")
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ROOM = 1.2
"""Free space that a file must leave, as a multiple of its size."""


class FileTransport:
    """Writes a safetensors file per publish and tells each server where it lies."""

    def __init__(self, folder: Path, timeout_s: float, token: int = 0) -> None:
        """`token`: of the attempt, whose files and those of earlier ones are all that it removes."""
        self._folder = folder
        self._token = token
        self._message: dict[str, str] = {}

    def prepare(self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int, urls: Sequence[str]) -> None:
        """Collect the tensors and write them where every server of `urls` can read them."""
        tensors = distinct(named_tensors)
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        folder = choose_folder(self._folder, urls, num_bytes)
        self.discard()
        path = folder / f"weights-{self._token}-{version}.safetensors"
        unfinished = path.with_suffix(".unfinished")
        save_file(tensors, unfinished)
        unfinished.rename(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._message = {"path": str(path.resolve()), "digest": digest}

    async def send(self, phases: Phases) -> None:
        """Make one server load the file."""
        await phases.start()
        await phases.update(self._message)
        await phases.finish()

    def discard(self) -> None:
        """Remove every file that this or an earlier, killed attempt has written: a later one may be sending its own."""
        remove_weights(self._folder, self._token)


def weights_folders(folder: Path) -> tuple[Path, ...]:
    """The folders in which a run with this weights folder may put files: what its servers must be allowed to read."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return (folder, SHARED_MEMORY / f"agrpo-{name}")


def remove_weights(folder: Path, token: int) -> None:
    """Remove the weight files of a run up to this attempt, finished or not, wherever they lie."""
    for place in weights_folders(folder):
        for path in [*place.glob("weights-*-*.safetensors"), *place.glob("weights-*-*.unfinished")]:
            if int(path.name.split("-")[1]) <= token:
                path.unlink(missing_ok=True)


def choose_folder(folder: Path, urls: Sequence[str], num_bytes: int) -> Path:
    """Shared memory when every server runs on this host and there is room, else the run's folder; made if missing."""
    plain, shared = weights_folders(folder)
    local = all(urlsplit(url).hostname in _LOOPBACK for url in urls)
    if local and SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > num_bytes * _ROOM:
        shared.mkdir(mode=0o700, exist_ok=True)
        # Everybody may write to /dev/shm: use only a folder that nobody else made there.
        if shared.lstat().st_uid == os.getuid() and not shared.is_symlink():
            return shared
    plain.mkdir(parents=True, exist_ok=True)
    return plain


def distinct(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU by name; of several names of one CPU tensor (tied weights) only the first.

    Only tensors that are kept are compared: a gathered one may lie where an earlier, freed one lay.
    """
    found: dict[str, torch.Tensor] = {}
    kept: set[tuple[int, torch.Size]] = set()
    for name, tensor in named_tensors:
        on_cpu = tensor.detach().to("cpu").contiguous()
        if (on_cpu.data_ptr(), on_cpu.shape) not in kept:
            found[name] = on_cpu
            kept.add((on_cpu.data_ptr(), on_cpu.shape))
    return found
