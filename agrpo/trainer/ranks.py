"""The few words ranks say to each other: rank 0 decides, the others follow."""

from typing import Any

import torch.distributed as dist


def world_size() -> int:
    """Processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, 0 decides."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def from_first(value: Any) -> Any:
    """Rank 0's value, on every rank; others pass anything."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def to_first(value: Any) -> list[Any]:
    """Every rank's value on rank 0, in rank order; an empty list elsewhere."""
    if world_size() == 1:
        return [value]
    boxes: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, boxes, dst=0)
    return boxes or []


def all_here() -> None:
    """Wait for every rank."""
    if world_size() > 1:
        dist.barrier()
