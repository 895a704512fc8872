"""The rollout worker's process: `python -m agrpo.rollout.worker --store URL --run RUN --token N --process-id P`."""

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvloop

from agrpo.environments.check import check_environments, check_tools
from agrpo.environments.pool import EnvironmentPool, Factory, TimeLimits
from agrpo.errors import AgrpoError, LeaseLost, Outage
from agrpo.launch import exits
from agrpo.launch.identity import read_identity
from agrpo.pretrained import loading
from agrpo.rollout.dispatcher import Dispatcher
from agrpo.rollout.fingerprint import fingerprint
from agrpo.rollout.groups import GroupGenerator, root_error
from agrpo.rollout.ledger import Ledger
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.pool import ServerPool
from agrpo.rollout.prompts import open_prompts
from agrpo.rollout.scoring import Scorer
from agrpo.rollout.slots import Slots
from agrpo.rollout.threads import Threads
from agrpo.store import Attempt, Store, events, runs, streams
from agrpo.tools.isolated import IsolatedTools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agrpo.trainer.async_grpo_config import AsyncGRPOConfig

STOP_LIMIT_S = 5.0
"""From SIGTERM to leaving, whatever a hook or a reward function is doing."""
PARENT_CHECK_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything a worker works with; picklable, because a plain script spawns its worker with it."""

    config: "AsyncGRPOConfig"
    model_name: str
    tokenizer: "PreTrainedTokenizerBase"
    eos_token_ids: tuple[int, ...]
    """Any of these ends a completion."""
    dataset: Any
    """Rows with a conversational `prompt`: a Dataset, an IterableDataset or a list."""
    reward_funcs: tuple[Callable[..., Any], ...]
    store_url: str
    run_id: str
    token: int
    loop_cls: Callable[..., AsyncRolloutLoop] = AsyncRolloutLoop
    commit_turns: bool = True
    """Keep every turn as it comes back; False: only finished groups."""
    tools: tuple[Callable[..., Any], ...] = ()
    environment_factory: Factory | Mapping[str, Factory] | None = None
    isolate_environments: bool = False
    """Every instance in a process of its own."""


def refuse_unpicklable(spec: WorkerSpec) -> None:
    """Raise TypeError naming the function, class or dataset of a spec that cannot reach the worker's process."""
    parts: list[tuple[str, Any]] = [("loop_cls", spec.loop_cls), ("config", spec.config)]
    parts += [("train_dataset", spec.dataset), ("environment_factory", spec.environment_factory)]
    parts += [("reward function", function) for function in spec.reward_funcs]
    parts += [("tool", tool) for tool in spec.tools]
    for name, value in parts:
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"{name} {value!r:.200} cannot be sent to the rollout worker, which is another process ({error}); "
                "define it at module level, or use functools.partial or a callable class instance"
            ) from error


def run_worker(spec: WorkerSpec, process_id: int) -> None:
    """Work for a run until SIGTERM, then exit as asked to stop: only one that is to leave is ever done.

    Raises LeaseLost, an Outage that lasted, or a bug's own exception.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    attempt = Attempt(Store.open(spec.store_url, create=False), spec.run_id, spec.token)
    try:
        has_left = uvloop.run(work(spec, attempt, process_id))
    except Exception as errors:
        error = root_error(errors)
        _tell(attempt, error)
        raise error from None
    # Whoever was stopped is started again unless the run is stopping.
    raise SystemExit(exits.DONE if has_left else exits.STOPPED)


async def work(spec: WorkerSpec, attempt: Attempt, process_id: int) -> bool:
    """The worker on an event loop, until it is cancelled, gets SIGTERM or has left; whether it was told to leave.

    Raises an exception group.
    """
    config = spec.config
    ledger = Ledger(attempt, process_id)
    pool = ServerPool(config.vllm_server_timeout, ledger.distrust)
    scorer = Scorer(spec.reward_funcs, config.reward_timeout_s)
    slots = Slots(config.max_concurrent_rollouts)
    loop = spec.loop_cls(config, spec.model_name, spec.tokenizer, spec.eos_token_ids, pool)
    num_epochs = config.num_train_epochs if config.max_steps <= 0 else None
    if spec.dataset is not None:
        runs.check_data(attempt, fingerprint(spec.dataset))
    known = streams.positions(attempt.store, attempt.run_id)
    prompts = open_prompts(spec.dataset, num_epochs, spec.environment_factory is None, known)
    environments = environments_of(spec, loop.threads)
    tools = IsolatedTools(spec.tools, config.tool_timeout_s)
    generator = GroupGenerator(
        loop, spec.run_id, slots, tools.tools, environments, ledger if spec.commit_turns else None
    )
    work = asyncio.ensure_future(Dispatcher(loop, prompts, scorer, pool, ledger, generator, slots).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop, work)
    asyncio.get_running_loop().add_signal_handler(exits.LEAVE_SIGNAL, _leave, ledger)
    async with contextlib.AsyncExitStack() as open_parts:  # what one raises while it is closed skips none of the others
        if environments is not None:
            open_parts.push_async_callback(environments.close)  # last: it may take longer than there is time
        open_parts.callback(tools.close)
        open_parts.callback(scorer.close)
        open_parts.callback(ledger.close)  # before what ends processes, for the same reason
        open_parts.push_async_callback(pool.close)
        for watch in (_end_with_parent(work), _end_when_left(ledger, work)):
            open_parts.callback(asyncio.ensure_future(watch).cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await work
    return ledger.is_leaving


def environments_of(spec: WorkerSpec, threads: Threads) -> EnvironmentPool | None:
    """The pool of a spec's environments, None when it has none."""
    if spec.environment_factory is None:
        return None
    config = spec.config
    limits = TimeLimits(config.tool_timeout_s, config.reset_timeout_s, config.get_reward_timeout_s)
    size = config.max_concurrent_rollouts
    return EnvironmentPool(spec.environment_factory, threads, limits, size, spec.isolate_environments)


def _stop(work: "asyncio.Future[None]") -> None:
    """Cancel everything; a user's code that does not let go is left behind."""
    work.cancel()
    timer = threading.Timer(STOP_LIMIT_S, os._exit, (exits.STOPPED,))
    timer.daemon = True
    timer.start()


def _leave(ledger: Ledger) -> None:
    ledger.is_leaving = True


async def _end_when_left(ledger: Ledger, work: "asyncio.Future[None]") -> None:
    while not ledger.is_leaving or ledger.num_in_flight:
        await asyncio.sleep(PARENT_CHECK_S)
    work.cancel()


async def _end_with_parent(work: "asyncio.Future[None]") -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_CHECK_S)
    _stop(work)


def _tell(attempt: Attempt, error: BaseException) -> None:
    """Leave the reason in the store, for whoever looks at the run without its logs."""
    if isinstance(error, LeaseLost):
        return
    kind = "worker_outage" if isinstance(error, Outage) else "worker_failed"
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(AgrpoError):
        events.add(attempt, kind, f"{type(error).__name__}: {error}", traceback=text)


def spec_of_run(store_url: str, run_id: str, token: int) -> WorkerSpec:
    """The spec of a run that was started from a run file: everything is read again from its stored settings."""
    from transformers import AutoTokenizer

    from agrpo import runfile
    from agrpo.trainer.run_config import make_config

    store = Store.open(store_url, create=False)
    run = runfile.RunFile.model_validate(runs.get_run(store, run_id).config)
    store.close()
    config = make_config(run, runfile.training_arguments(run))
    dataset = runfile.load_dataset(run)
    tools = check_tools([runfile.resolve_callable(path) for path in run.tools])
    revision = config.model_revision
    with loading("the tokenizer", run.model.path):
        tokenizer = AutoTokenizer.from_pretrained(
            run.model.path, revision=revision or "main", trust_remote_code=config.trust_remote_code
        )
    return WorkerSpec(
        config=config,
        model_name=run.model.path,
        tokenizer=tokenizer,
        eos_token_ids=end_tokens(run.model.path, tokenizer, revision),
        dataset=dataset,
        reward_funcs=tuple(runfile.resolve_callable(path) for path in run.rewards),
        store_url=store_url,
        run_id=run_id,
        token=token,
        commit_turns=run.store.commit == "turn",
        loop_cls=AsyncRolloutLoop if run.loop is None else runfile.resolve_callable(run.loop),
        tools=tools,
        environment_factory=check_environments(
            runfile.environment_factory(run), tools, run.rewards or run.loop, dataset
        ),
        isolate_environments=run.environment.isolation == "process",
    )


def end_tokens(model_name: str, tokenizer: "PreTrainedTokenizerBase", revision: str | None = None) -> tuple[int, ...]:
    """Ids that end a completion: the tokenizer's and those of the model's generation config, where it has one."""
    from transformers import GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(model_name, revision=revision or "main").eos_token_id
    except OSError:
        named = None
    listed = named if isinstance(named, list) else [named]
    return tuple(sorted({token_id for token_id in [*listed, tokenizer.eos_token_id] if token_id is not None}))


def main(arguments: Sequence[str]) -> None:
    """Read the command line, then work."""
    mine = read_identity("agrpo.rollout.worker", "Rollout worker of a run.", arguments)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    spec = spec_of_run(mine.store_url, mine.run_id, mine.token)
    # A standby has loaded everything now; nothing comes in when the launcher has gone without needing it.
    process_id = sys.stdin.readline() if mine.process_id == "-" else mine.process_id
    if process_id:
        run_worker(spec, int(process_id))


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
