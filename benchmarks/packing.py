"""What prefix trees save: forward and backward of packed rows against plain padding-free packing of the same samples.

    python -m benchmarks.packing [--json] [--device cuda] [--run quickstart]

Model (random weights) and samples are made here, or are those of a run's ledger; a ratio is that of two medians of one
run, measured in turns.
The bound is the ratio of the arithmetic alone: backbone per forwarded token, head per loss term, attention per pair.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agrpo.attention import install
from agrpo.losses.head import HeadQuery, read_head
from agrpo.trees import Limits, Sample, TreeRow, pack, plan_step
from benchmarks.packing_cases import CPU_CASES, GPU_CASES, Case, Tokens, grouped, recorded


@dataclass(frozen=True, slots=True)
class Result:
    """One case; ratios are plain packing / tree, memory is tree / plain."""

    name: str
    packing_ratio: float
    bound: float
    speedup: float
    fraction_of_bound: float
    peak_memory_ratio: float
    plain_s: float
    tree_s: float
    trained_tokens_per_s: float
    mfu: float | None


def main() -> None:
    """Measure every case and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--device", default="cpu", help="cpu (SmolLM2-135M, float32) or cuda (Qwen3-0.6B, bfloat16)")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each case, of which the median counts")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--run", help="the steps of this run instead of made-up samples")
    parser.add_argument("--store", default="sqlite:///runs/agrpo.db", help="the store that holds the run")
    parser.add_argument("--peak-tflops", type=float, help="the device's peak, for the model FLOPs utilisation")
    options = parser.parse_args()
    device = torch.device(options.device)
    model = make_model(device)
    made_up = CPU_CASES if device.type == "cpu" else GPU_CASES
    offered = list(recorded(options.store, options.run)) if options.run else made_up
    cases = [case for case in offered if (options.only or "") in case.name]
    results = [measure(model, case, options.repeats, options.peak_tflops) for case in cases]
    planner_s, dictionary_trie_s = time_planner()
    if options.json:
        rows = [asdict(result) for result in results]
        print(json.dumps({"cases": rows, "planner_s": planner_s, "dictionary_trie_s": dictionary_trie_s}))
        return
    for result in results:
        print(
            f"{result.name:22} ratio {result.packing_ratio:5.2f}  bound {result.bound:5.2f}"
            f"  speedup {result.speedup:5.2f} = {result.fraction_of_bound:4.0%} of the bound"
            f"  memory x{result.peak_memory_ratio:4.2f}  ({result.plain_s:.2f} s -> {result.tree_s:.2f} s)"
        )
    print(f"planner {planner_s:.3f} s, a trie of dictionaries {dictionary_trie_s:.3f} s")


def make_model(device: torch.device) -> PreTrainedModel:
    """SmolLM2-135M's shape on a CPU, Qwen3-0.6B's on a GPU."""
    torch.manual_seed(0)
    if device.type == "cpu":
        smol = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30)
        smol.update({"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": True})
        return LlamaForCausalLM(smol)
    qwen = Qwen3Config(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28)
    qwen.update({"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True})
    return Qwen3ForCausalLM(qwen).to(device, torch.bfloat16)


def measure(model: PreTrainedModel, case: Case, repeats: int, peak_tflops: float | None) -> Result:
    """Plain packing and the tree in turns; the first run of each warms up and tells its memory."""
    device = next(model.parameters()).device
    samples = case.samples(model.config.vocab_size)
    plain, tree = pack(samples, share=False), pack(samples)
    runs = (plain_run(model, plain, device), tree_run(model, tree, device))
    memory = []
    for run in runs:
        model.zero_grad()
        memory.append(peak_memory(run, device))
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for run, taken in zip(runs, times, strict=True):
            taken.append(timed(run, device))
    plain_s, tree_s = (median(taken) for taken in times)
    work = [arithmetic(model, row) for row in (plain, tree)]
    bound = work[0] / work[1]
    return Result(
        name=case.name,
        packing_ratio=tree.packing_ratio,
        bound=bound,
        speedup=plain_s / tree_s,
        fraction_of_bound=plain_s / tree_s / bound,
        peak_memory_ratio=memory[1] / memory[0],
        plain_s=plain_s,
        tree_s=tree_s,
        trained_tokens_per_s=len(tree.targets) / tree_s,
        mfu=None if peak_tflops is None else work[1] / tree_s / (peak_tflops * 1e12),
    )


def arithmetic(model: PreTrainedModel, row: TreeRow) -> float:
    """Floating point operations of forward and backward."""
    config = model.config
    matrices = sum(layer.weight.numel() for layer in model.model.modules() if isinstance(layer, nn.Linear))
    head = config.vocab_size * config.hidden_size
    per_pair = 2 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return 6.0 * (matrices * row.layout.num_tokens + head * len(row.targets) + per_pair * row.layout.num_pairs)


def plain_run(model: PreTrainedModel, row: TreeRow, device: torch.device) -> Callable[[], None]:
    """Samples one after another, PyTorch's own attention for each."""
    bounds = [*row.layout.starts.tolist(), row.layout.num_tokens]

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **_: Any
    ) -> tuple[Tensor, None]:
        pieces = [
            F.scaled_dot_product_attention(
                *(states[:, :, start:end] for states in (query, key, value)), is_causal=True, enable_gqa=True
            )
            for start, end in pairwise(bounds)
        ]
        return torch.cat(pieces, 2).transpose(1, 2).contiguous(), None

    if device.type == "cuda":
        return tree_run(model, row, device)

    def switch() -> None:
        AttentionInterface.register("plain_packing", attend)
        model.set_attn_implementation("plain_packing")

    return step_of(model, row, device, switch)


def tree_run(model: PreTrainedModel, row: TreeRow, device: torch.device) -> Callable[[], None]:
    """The row through the backend that a run would get."""
    prepared = install(model).prepare(row.layout, device)
    return step_of(model, row, device, lambda: install(model), **prepared)


def step_of(
    model: PreTrainedModel, row: TreeRow, device: torch.device, switch: Callable[[], object], **extra: Any
) -> Callable[[], None]:
    """Forward and backward of one row."""
    input_ids, position_ids, positions, targets = (
        torch.as_tensor(array, device=device)
        for array in (row.input_ids, row.layout.position_ids, row.positions, row.targets)
    )
    query = HeadQuery(targets, targets.new_empty(len(targets), 0), None, 1.0)

    def step() -> None:
        switch()
        model.zero_grad()
        states = model.model(input_ids=input_ids[None], position_ids=position_ids[None], use_cache=False, **extra)
        answer = read_head(states.last_hidden_state[0, positions], model.lm_head.weight, None, query)
        answer.log_probs.sum().backward()

    return step


def timed(run: Callable[[], None], device: torch.device) -> float:
    """Seconds of one run."""
    gc.collect()
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def peak_memory(run: Callable[[], None], device: torch.device) -> int:
    """Most bytes of tensors held during a run, beyond those held before it."""
    gc.collect()
    if device.type == "cuda":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - held
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([event.nbytes() for event in events]).max())


def time_planner() -> tuple[float, float]:
    """Seconds to plan and pack eight rows of 360,000 raw tokens, and to build a plain trie of the same samples."""
    samples = grouped("planner", 15, 8, 1000, 2000).samples(150_000)
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        offered = [Sample.of(number, number // 8, tokens, 2000) for number, (tokens, _) in enumerate(samples)]
        plan = plan_step(offered, Limits(num_ranks=8, num_micro_batches=2, token_budget=32_768))
        for batch in plan.micro_batches:
            for row in batch:
                packed = pack([samples[sample.sample_id] for sample in row])
                _ = packed.layout.blocks, packed.layout.segments, packed.layout.gathered
        taken.append(time.perf_counter() - started)
    started = time.perf_counter()
    dictionary_trie(samples)
    return median(taken), time.perf_counter() - started


def dictionary_trie(samples: list[Tokens]) -> int:
    """A dictionary for every token: what the planner's sorted arrays are compared with."""
    root: dict[Any, Any] = {}
    num_nodes = 0
    for token_ids, _ in samples:
        tokens, node = token_ids.tolist(), root
        for pair in zip(tokens, [*tokens[1:], None], strict=True):
            if pair not in node:
                node[pair] = {}
                num_nodes += 1
            node = node[pair]
    return num_nodes


if __name__ == "__main__":
    main()
