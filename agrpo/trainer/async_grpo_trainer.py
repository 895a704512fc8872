"""The documented trainer: `AsyncGRPOTrainer(model, reward_funcs, ...).train()` in a plain script."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import TrainOutput

from agrpo.environments.check import check_environments, check_tools
from agrpo.records import Rollout, RolloutGroup, TurnRecord
from agrpo.rollout.loop import AsyncRolloutLoop
from agrpo.rollout.worker import WorkerSpec, end_tokens, refuse_unpicklable
from agrpo.store import Attempt, Store
from agrpo.store.runs import RunSummary
from agrpo.trainer import ranks
from agrpo.trainer.assembly import assemble
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.plain_run import attach_script, open_store, running
from agrpo.trainer.policy_model import load_policy, load_tokenizer
from agrpo.trainer.script_input import check_dataset, check_rewards, refuse_unfinished
from agrpo.trainer.store_trainer import StoreTrainer

__all__ = ["AsyncGRPOConfig", "AsyncGRPOTrainer", "AsyncRolloutLoop", "Rollout", "RolloutGroup", "TurnRecord"]

RewardFunc = Callable[..., Any]


class AsyncGRPOTrainer(StoreTrainer):
    """Asynchronous GRPO: a worker process streams scored completions from vLLM servers while this one trains.

    `model` is a name, a path or a PreTrainedModel; `train_dataset` has a conversational `prompt` column. Raises
    BadInput, which is a ValueError where it is about `args`, for what cannot be trained.
    """

    loop_cls: type[AsyncRolloutLoop] = AsyncRolloutLoop

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        reward_funcs: RewardFunc | list[RewardFunc] | None = None,
        args: AsyncGRPOConfig | None = None,
        train_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
        tools: list[Callable[..., Any]] | None = None,
        environment_factory: Any = None,
    ) -> None:
        refuse_unfinished(peft_config=peft_config)
        args = args or AsyncGRPOConfig()
        self.tools = check_tools(tools)
        is_own_loop = self.loop_cls.generate_one is not AsyncRolloutLoop.generate_one
        self.environment_factory = check_environments(
            environment_factory, self.tools, reward_funcs or is_own_loop, train_dataset
        )
        self.reward_funcs = check_rewards(reward_funcs, environment_factory is not None or is_own_loop)
        check_dataset(train_dataset, environment_factory is not None, args.max_steps)
        policy = model if isinstance(model, PreTrainedModel) else load_policy(str(model), args)
        self.model_name = str(policy.config.name_or_path)
        tokenizer = processing_class or load_tokenizer(self.model_name, args)
        super().__init__(policy, args, tokenizer, callbacks, optimizers)
        self.tokenizer = tokenizer
        self.train_dataset = train_dataset

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to the end. True continues the run that this output folder holds; None begins a new one.

        Raises TypeError naming a reward function that cannot reach the worker, ChildFailed when the worker is lost.
        """
        self.stop.clear()  # after Ctrl-C a notebook calls this again
        refuse_unpicklable(self._worker_spec("", "", 0))
        if ranks.rank() != 0:
            return self._follow()
        store = open_store(Path(self.args.output_dir or "."))
        try:
            attached = attach_script(store, self.args, self.model_name, resume_from_checkpoint)
            if attached.attempt is None:
                ranks.from_first(None)
                assert attached.finished is not None
                return self._already_finished(attached.finished)
            return self._lead(attached.attempt)
        finally:
            store.close()

    def _lead(self, attempt: Attempt) -> TrainOutput:
        output_dir = Path(self.args.output_dir or ".")
        with running(attempt, self.args, self.stop) as run:
            ranks.from_first((attempt.store.url, attempt.run_id, attempt.token))
            spec = self._worker_spec(attempt.store.url, attempt.run_id, attempt.token)
            run.start_worker(spec, output_dir / "logs" / "worker-0.log")
            work = assemble(self, attempt, output_dir, output_dir, self.tokenizer, run.watch)
            done = self.train_in(work)
        self.stop.pass_on()
        if self.stop.requested:
            step = self.state.global_step
            print(f"run {attempt.run_id} is stopped at step {step}: train(resume_from_checkpoint=True) goes on")
        return done

    def _follow(self) -> TrainOutput:
        """Another rank: rank 0 says which run it is, or that there is nothing to do."""
        identity = ranks.from_first(None)
        if identity is None:
            return TrainOutput(0, 0.0, {})
        url, run_id, token = identity
        output_dir = Path(self.args.output_dir or ".")
        attempt = Attempt(Store.open(url, create=False), run_id, token)
        return self.train_in(assemble(self, attempt, output_dir, output_dir, self.tokenizer))

    def _already_finished(self, summary: RunSummary) -> TrainOutput:
        print(f"run {summary.run_id} is finished at step {summary.step}: nothing is trained", flush=True)
        if summary.checkpoint is not None:
            self._load_from_checkpoint(summary.checkpoint)
        self.state.global_step = summary.step
        return TrainOutput(summary.step, 0.0, dict(summary.metrics))

    def _worker_spec(self, store_url: str, run_id: str, token: int) -> WorkerSpec:
        return WorkerSpec(
            config=self.args,
            model_name=self.model_name,
            tokenizer=self.tokenizer,
            eos_token_ids=end_tokens(self.model_name, self.tokenizer, self.args.model_revision),
            dataset=self.train_dataset,
            reward_funcs=self.reward_funcs,
            store_url=store_url,
            run_id=run_id,
            token=token,
            loop_cls=self.loop_cls,
            tools=self.tools,
            environment_factory=self.environment_factory,
        )
