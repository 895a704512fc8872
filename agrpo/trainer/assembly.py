"""Puts together what a trainer needs for a run: the same for a run file and for a plain script."""

import time
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from agrpo.errors import ServerOutage
from agrpo.store import Attempt, processes, servers
from agrpo.store.pruning import Keep
from agrpo.trainer import ranks
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.greeting import capabilities_of, greet
from agrpo.trainer.policy_weights import PolicyWeights
from agrpo.trainer.probing import TextProbe
from agrpo.trainer.publishing import ServerSync
from agrpo.trainer.store_trainer import StoreTrainer
from agrpo.trainer.work import RunWork
from agrpo.weights.publisher import Publisher, drivable_backends

POLL_S = 0.5


def assemble(
    trainer: StoreTrainer,
    attempt: Attempt,
    run_dir: Path,
    checkpoint_root: Path,
    tokenizer: PreTrainedTokenizerBase,
    watch: Callable[[], None] = lambda: None,
    keep_payloads: Keep = "all",
) -> RunWork:
    """Everything that connects a trainer with its run; `watch` is called now and then and may raise."""
    args, weights = trainer.args, PolicyWeights(trainer.policy)
    return RunWork(
        attempt=attempt,
        weights=weights,
        args=args,
        token_budget=token_budget(attempt, args, watch),
        checkpoint_root=checkpoint_root,
        sync=server_sync(trainer, attempt, run_dir, weights, tokenizer),
        stop=trainer.stop,
        measures=trainer.measures,
        attention_backend=trainer.attention_backend,
        watch=watch,
        keep_payloads=keep_payloads,
    )


def server_sync(
    trainer: StoreTrainer, attempt: Attempt, run_dir: Path, weights: PolicyWeights, tokenizer: PreTrainedTokenizerBase
) -> ServerSync:
    """Publishing to the run's servers, each looked at before its first update."""
    args, model = trainer.args, trainer.policy
    drivable = drivable_backends(args.device.type != "cpu")
    return ServerSync(
        attempt=attempt,
        weights=weights,
        publisher=Publisher(run_dir / "weights", args.vllm_server_timeout, attempt.token),
        probe=TextProbe(model, tokenizer, args),
        greet=lambda url: greet(url, args, str(model.dtype), drivable),
        args=args,
        stop=trainer.stop,
        window=trainer.measures.window,
    )


def token_budget(attempt: Attempt, args: AsyncGRPOConfig, watch: Callable[[], None]) -> int:
    """The setting, or else the longest sequence of the first healthy server, which is waited for; on every rank."""
    if args.token_budget is not None:
        return args.token_budget
    longest = _longest_sequence(attempt, args.vllm_server_timeout, watch) if ranks.rank() == 0 else None
    return int(ranks.from_first(longest))


def _longest_sequence(attempt: Attempt, timeout_s: float, watch: Callable[[], None]) -> int:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        watch()
        for server in servers.healthy(attempt.store, attempt.run_id):
            return capabilities_of(server.url, timeout_s).max_model_len
        processes.beat(attempt, "trainer", 0, "train", "waiting for a server")
        time.sleep(POLL_S)
    urls = ", ".join(server.url for server in servers.servers(attempt.store, attempt.run_id)) or "none registered"
    raise ServerOutage(
        f"no server answered within vllm_server_timeout={timeout_s:g} s ({urls}): start one, then resume"
    )
