"""Transformers' training loop, fed from the store: everything about a step except where samples come from."""

import contextlib
import itertools
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy, TrainOutput

from agrpo.attention import TreeAttention
from agrpo.errors import BadInput
from agrpo.records import TrainingSequence
from agrpo.store import samples
from agrpo.trainer import ranks
from agrpo.trainer.async_grpo_config import AsyncGRPOConfig
from agrpo.trainer.checkpoint import room_for
from agrpo.trainer.clock import StepClock
from agrpo.trainer.completions import print_completions
from agrpo.trainer.duties import Duties
from agrpo.trainer.feed import StepOrder
from agrpo.trainer.measures import Measures
from agrpo.trainer.mfu import arithmetic, device_name
from agrpo.trainer.policy_model import freeze_tower, fuse_head, in_trees, ready_tokenizer, router_coefficient
from agrpo.trainer.random_state import RandomState
from agrpo.trainer.resuming import own_settings
from agrpo.trainer.row_loss import RowLoss, to_device
from agrpo.trainer.rows import Row, build_row
from agrpo.trainer.stopping import StopRequested, StopSwitch

ENDLESS = 1 << 31
"""Steps of a run that ends with its data."""


class StoreTrainer(Trainer):
    """Takes steps from a run's ledger, publishes what they made, and keeps checkpoints that are whole."""

    args: AsyncGRPOConfig

    def __init__(
        self,
        model: PreTrainedModel,
        args: AsyncGRPOConfig,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        self.measures = Measures(arithmetic(model, device_name(args.use_cpu)))
        self.stop = StopSwitch()
        self._work: Duties | None = None
        self._order: StepOrder | None = None
        self._attention: TreeAttention | None = None
        self._closed_step = self._saved_step = 0
        self._folder: Path | None = None
        self._to_show: list[TrainingSequence] = []
        self._random_state = RandomState.now()
        self._made_optimizer = optimizers == (None, None)
        freeze_tower(model)
        head = fuse_head(model)
        self._row_loss = RowLoss(head, args, router_coefficient(model, args))
        tokenizer = None if processing_class is None else ready_tokenizer(processing_class)
        clock = StepClock(self.measures, self._begin)
        super().__init__(
            model, args, processing_class=tokenizer, callbacks=[clock, *(callbacks or [])], optimizers=optimizers
        )
        if self.args.max_steps <= 0:
            self.remove_callback(ProgressCallback)  # nobody knows how many steps the data will make
        if self.args.n_gpu > 1:
            raise BadInput(f"{self.args.n_gpu} GPUs in one process: start one process a GPU with accelerate launch")
        with in_trees(model, self.args) as attention:  # what training would refuse is refused before servers start
            self.attention_backend = attention.name

    def train_in(self, work: Duties) -> TrainOutput:
        """Train until the run's end, its data's end or a stop; the last finished step is then in a checkpoint.

        `work` is what rank 0 and the others do for the run beside computing. Raises what it raises.
        """
        self._work = work
        start = work.start()
        self._closed_step = self._saved_step = start.step
        with self.stop.installed(), in_trees(self.policy, self.args) as self._attention:
            try:
                done = super().train(resume_from_checkpoint=str(start.path) if start.path else None)
            except StopRequested:
                self._random_state.restore()  # the checkpoint is one of the step before, as if this one never began
                done = TrainOutput(self.state.global_step, 0.0, {})
            self._save_checkpoint(self.policy, None)
        return done

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Nothing: steps come from `get_batch_samples`."""
        return cast("DataLoader[Any]", itertools.repeat(None))

    def set_initial_training_values(
        self, args: Any, dataloader: DataLoader[Any]
    ) -> tuple[int, int, int, int, int, int | None, int]:
        """One epoch of max_steps steps, or of so many that the data ends first."""
        steps = args.max_steps if args.max_steps > 0 else ENDLESS
        return 1, steps, 0, 0, 0, steps * args.gradient_accumulation_steps, steps

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Gradients' moments and the place in the schedule; all that is a setting stays this run's own.

        Other schedules, and what a script made itself, may change settings step by step: the checkpoint knows them.
        """
        if checkpoint is not None:
            optimizer, scheduler = self.optimizer, self.lr_scheduler
            loading: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if self._made_optimizer and optimizer is not None and type(scheduler) is LambdaLR:
                loading = own_settings(optimizer, scheduler)
            with loading:
                super()._load_optimizer_and_scheduler(checkpoint)
            self.state.compute_steps(self.args, self.state.max_steps)  # type: ignore[no-untyped-call]

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[list[Row]], int | None]:
        """This rank's rows of the next step, in `gradient_accumulation_steps` entries; the last holds any surplus."""
        order = self._run.next_order(self.state.global_step + 1)
        self._random_state = RandomState.now()
        if not isinstance(order, StepOrder):
            self.control.should_training_stop = True
            return [], None
        self._order = order
        self._to_show = []
        rows = [self._load_row(micro_batch) for micro_batch in order.micro_batches]
        entries = [rows[index : index + 1] or [build_row([])] for index in range(num_batches)]
        entries[-1] += rows[num_batches:]
        return entries, order.num_trained

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Forward and backward of one entry's rows; gradients add up to the step's mean over its trained tokens."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        for index, row in enumerate(inputs):
            is_last = index == len(inputs) - 1
            self._run.alive(f"step {self.state.global_step + 1}: a row of {row.num_tokens} tokens")
            with (
                self.measures.timing("fwd_bwd_s"),
                self.stop.interruptible(self.args.world_size == 1),
                contextlib.nullcontext() if is_last else self.accelerator.no_sync(model),
            ):
                total += self._train_row(model, to_device(row, self.args.device), int(num_items_in_batch or 0))
        return total

    def _train_row(self, model: nn.Module, row: Row, num_trained: int) -> Tensor:
        with self.measures.timing("fwd_s"):
            assert self._attention is not None
            result = self._row_loss(model, row, self._attention)
        # Gradients are averaged over ranks, but the mean is over the tokens of all of them.
        loss: Tensor = result.total * self.args.world_size / max(num_trained, 1)
        self.accelerator.backward(loss)
        self.measures.add_row(row, result.marks, result.aux_loss)
        return loss.detach()

    def _load_row(self, micro_batch: Any) -> Row:
        ids = [sample.sample_id for sample in micro_batch[ranks.rank()]]
        sequences = samples.load(self._run.store, ids)
        if self.args.log_completions:
            self._to_show += sequences
        return build_row(sequences)

    def _begin(self) -> None:
        self._run.begin(self.state.global_step)
        self.measures.begin()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # The loop counts batches, which says nothing about passes over the prompts.
        self.state.epoch = None  # type: ignore[assignment]
        if self._order is not None and self.state.global_step > self._closed_step:
            self._close_step(self._order)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _close_step(self, order: StepOrder) -> None:
        self._closed_step = order.step
        self.state.num_input_tokens_seen += order.num_tokens
        self._run.close(order)
        self.measures.end_step(order, self._run.token_budget)
        periodic = self.args.save_strategy == SaveStrategy.STEPS
        if periodic and self._run.checkpoint_is_due():
            self.control.should_save = True

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the window of all ranks, through transformers and once per step into the store."""
        window = self.measures.take()
        for other in ranks.to_first(window)[1:]:
            window.merge(other)
        logs = {**logs, "num_tokens": float(self.state.num_input_tokens_seen), **window.values()}
        super().log(logs, start_time)
        self._run.log(self.state.global_step, logs)
        if self._to_show and ranks.rank() == 0 and isinstance(self.processing_class, PreTrainedTokenizerBase):
            limit = self.args.num_completions_to_print
            print_completions(self.processing_class, self._to_show, self.state.global_step, limit)
            self._to_show = []

    def floating_point_ops(self, inputs: Any) -> int:
        """Six per parameter and forwarded token."""
        num_parameters: int = sum(parameter.numel() for parameter in self.policy.parameters())
        num_tokens: int = sum(row.num_tokens for row in inputs)
        return 6 * num_parameters * num_tokens

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Counted per step, over all ranks."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._folder or self.args.output_dir)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        step = self.state.global_step
        if step == self._saved_step or self.args.save_strategy == SaveStrategy.NO:
            return
        self._folder = self._run.begin_checkpoint(step)
        with room_for(self._folder, step):
            try:
                super()._save_checkpoint(model, trial)
            finally:
                folder, self._folder = self._folder, None
            self._run.finish_checkpoint(step, folder / f"checkpoint-{step}", self.args.save_total_limit)
        self._saved_step = step

    @property
    def policy(self) -> PreTrainedModel:
        """The model without any wrapper."""
        assert isinstance(self.model, PreTrainedModel)
        return self.model

    @property
    def _run(self) -> Duties:
        if self._work is None:
            raise BadInput("this trainer is not attached to a run: call train()")
        return self._work
