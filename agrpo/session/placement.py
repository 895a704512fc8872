"""Which process gets which GPU, decided without importing torch."""

import os
from dataclasses import dataclass
from pathlib import Path

from agrpo.errors import BadInput
from agrpo.runfile import RunFile


@dataclass(frozen=True, slots=True)
class Placement:
    """GPU numbers of each process; empty lists on a CPU."""

    trainer: list[int]
    servers: list[list[int]]
    """By server index."""

    @property
    def on_gpu(self) -> bool:
        """Whether the trainer runs on GPUs."""
        return bool(self.trainer)


def placement(run: RunFile) -> Placement:
    """Last GPUs for the trainer's ranks, the others shared by the servers, unless the run file says otherwise."""
    there = visible_gpus()
    wanted = {*(run.trainer.gpus or []), *(run.servers.gpus or [])}
    if not wanted <= set(there):
        raise BadInput(
            f"gpus: the run file asks for GPU {min(wanted - set(there))}, this machine has {there or 'none'}; "
            "name GPUs that are there, or leave both lists out"
        )
    trainer = run.trainer.gpus if run.trainer.gpus is not None else there[-run.trainer.ranks :]
    rest = run.servers.gpus if run.servers.gpus is not None else [gpu for gpu in there if gpu not in trainer]
    if there and not run.servers.urls and len(rest) < run.servers.count:
        counts = {"servers.count": run.servers.count, "trainer.ranks": run.trainer.ranks}
        fewer = "".join(f"a smaller {key}, or " for key, count in counts.items() if count > 1)
        raise BadInput(
            f"servers.count: {run.servers.count}, each on its GPU, but {len(rest)} of the GPUs {there} are left for "
            f"servers; use {fewer}servers.urls of other machines"
        )
    if trainer and len(trainer) != run.trainer.ranks:
        raise BadInput(f"trainer.ranks: {run.trainer.ranks} ranks need as many GPUs, the trainer has {len(trainer)}")
    return Placement(trainer, [rest[index :: run.servers.count] for index in range(run.servers.count)])


def visible_gpus() -> list[int]:
    """NVIDIA GPUs of this machine that the environment does not hide. Raises BadInput when it names one otherwise."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        if "GPU-" in hidden or "MIG-" in hidden:  # else all would run on the CPU without a word
            raise BadInput(f"CUDA_VISIBLE_DEVICES={hidden}: expected numbers, such as 0,1; `nvidia-smi -L` shows them")
        return [int(number) for number in hidden.split(",") if number.strip().isdigit()]
    return sorted(int(device.name.removeprefix("nvidia")) for device in Path("/dev").glob("nvidia[0-9]*"))
