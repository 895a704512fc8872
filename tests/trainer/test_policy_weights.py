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

from agrpo.store import Store, policies, steps
from agrpo.trainer.checkpoint import Choice
from agrpo.trainer.feed import StepOrder
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.probing import TextProbe
from agrpo.trainer.replay import ReplayWork
from agrpo.trainer.replay_result import StepCheck
from tests.trainer import ledger
from tests.worlds import small_groups
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
    replayed = replay_of(model, folder)
    if rank == 0:
        assert [check.is_equal for check in replayed] == [True, True]
        assert weights.is_sharded and not any(isinstance(tensor, DTensor) for _, tensor in weights.named())
        torch.save({"digest": weights.digest(), "weights": dict(weights.named())}, f"{folder}/gathered.pt")
    dist.destroy_process_group()


def replay_of(model: LlamaForCausalLM, folder: str) -> list[StepCheck]:
    """What a replay says of these weights at its start and after a step, on rank 0; every rank has its part."""
    store = Store.open(f"sqlite:///{folder}/agrpo.db")
    work = ReplayWork(store, "small", Choice(None, 0, ()), 1, None)
    work.weights = PolicyWeights(model)
    work.begin(0)
    work.close(StepOrder(1, ()))
    store.close()
    return [*([work.start_check] if work.start_check else []), *work.checks]


def record(folder: Path, digest: str) -> None:
    """A run that had these weights at its start and after its first step."""
    attempt = small_groups.start_run(ledger.open_store(folder))
    policies.publish(attempt, 0, 0, digest)
    steps.record(attempt, 1, [], 0)
    steps.finish(attempt, 1, digest, {})
    attempt.store.close()


def test_rank_0_holds_what_the_model_would_hold_unsharded(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    record(tmp_path, ledger.weights_digest(model))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(gather, (port, str(tmp_path)), nprocs=NUM_RANKS)
    gathered = torch.load(tmp_path / "gathered.pt", weights_only=True)
    plain = PolicyWeights(model)
    plain.gather()
    assert gathered["digest"] == plain.digest() == ledger.weights_digest(model) and not plain.is_sharded
    assert list(gathered["weights"]) == [name for name, _ in plain.named()]
    assert all(torch.equal(gathered["weights"][name], tensor) for name, tensor in plain.named())
