"""Rows of a step over several ranks, parameters sharded with FSDP2: the sum of their gradients is that of one row."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from agrpo.attention import install
from agrpo.trees import Limits, Sample, pack, plan_step
from tests.worlds import forest
from tests.worlds.tiny_models import tiny

SAMPLES = [forest.sample([1, 2, 3, 4, number, 6, number, 1], 4) for number in range(3)]


def loss_of(model: torch.nn.Module, row: list[forest.Sample]) -> Tensor:
    attention, packed = install(model), pack(row)
    tokens, places = (torch.as_tensor(array)[None] for array in (packed.input_ids, packed.layout.position_ids))
    prepared = attention.prepare(packed.layout, torch.device("cpu"))
    log_probs = model(input_ids=tokens, position_ids=places, **prepared).logits[0].log_softmax(-1)
    # The sum over an empty row is 0, and its backward still takes part in every collective.
    return log_probs[torch.as_tensor(packed.positions), torch.as_tensor(packed.targets)].sum()


def train_sharded(rank: int, num_ranks: int, port: int, kind: str, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=num_ranks)
    model = tiny(kind)
    install(model)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    offered = [Sample.of(number, 0, *SAMPLES[number][:1], 4) for number in range(len(SAMPLES))]
    (batch,) = plan_step(offered, Limits(num_ranks, 1, 100)).micro_batches
    loss_of(model, [SAMPLES[sample.sample_id] for sample in batch[rank]]).backward()
    grads = {}
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        grads[name] = parameter.grad.full_tensor() * num_ranks
    if rank == 0:
        torch.save(grads, Path(folder) / "grads.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(("num_ranks", "kind"), [(2, "qwen3_5"), (4, "qwen3")])
def test_the_gradient_does_not_depend_on_ranks(num_ranks: int, kind: str, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(train_sharded, (num_ranks, port, kind, str(tmp_path)), nprocs=num_ranks)
    model = tiny(kind)
    loss_of(model, SAMPLES).backward()
    sharded = torch.load(tmp_path / "grads.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        assert torch.allclose(sharded[name], parameter.grad, rtol=1e-9, atol=1e-10), name
