"""Sharded weights (FSDP2) are gathered whole: the same names, values and digest as those of an unsharded model."""

import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer, LlamaForCausalLM

from agrpo.trainer.policy_model import weights_digest
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.probing import TextProbe
from tests.trainer import ledger
from tests.worlds.tiny_model import make_tiny_model

NUM_RANKS = 2


def gather(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=NUM_RANKS)
    model = LlamaForCausalLM.from_pretrained(f"{folder}/model")
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    weights = PolicyWeights(model)
    weights.gather()
    probe = TextProbe(model, AutoTokenizer.from_pretrained(f"{folder}/model"), ledger.config(Path(folder)))
    probe.read()  # every rank takes part, so nobody waits for ever
    if rank == 0:
        assert weights.is_sharded and not any(isinstance(tensor, DTensor) for _, tensor in weights.named())
        torch.save({"digest": weights.digest(), "weights": dict(weights.named())}, f"{folder}/gathered.pt")
    dist.destroy_process_group()


def test_rank_0_holds_what_the_model_would_hold_unsharded(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(gather, (port, str(tmp_path)), nprocs=NUM_RANKS)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    gathered = torch.load(tmp_path / "gathered.pt", weights_only=True)
    plain = PolicyWeights(model)
    plain.gather()
    assert gathered["digest"] == plain.digest() == weights_digest(model) and not plain.is_sharded
    assert list(gathered["weights"]) == [name for name, _ in plain.named()]
    assert all(torch.equal(gathered["weights"][name], tensor) for name, tensor in plain.named())
