"""A look at what is trained: prompts and completions as text."""

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from agrpo.records import TrainingSequence


def print_completions(
    tokenizer: PreTrainedTokenizerBase, sequences: Sequence[TrainingSequence], step: int, limit: int | None
) -> None:
    """Print the first `limit` samples of a step (None: all) with their advantages."""
    table = Table("prompt", "completion", "advantage", title=f"step {step}", show_lines=True)
    for sequence in sequences[:limit]:
        prompt, completion = split_sample(sequence)
        texts = [Text(str(tokenizer.decode(part))) for part in (prompt, completion)]
        table.add_row(*texts, f"{sequence.advantage:+.2f}")
    Console().print(table)


def split_sample(sequence: TrainingSequence) -> tuple[np.ndarray, np.ndarray]:
    """The tokens before the first trained one, and the rest."""
    start = int(np.argmax(sequence.trained)) if sequence.num_trained else sequence.num_tokens
    return sequence.token_ids[:start], sequence.token_ids[start:]
