"""The proof that a server computes with the weights that the trainer has."""

import math
from collections.abc import Sequence

from agrpo.errors import ProbeFailed
from agrpo.inference.client import ServerClient
from agrpo.inference.http import run_blocking

TOLERANCES = {"float32": 1e-2, "float16": 0.1, "bfloat16": 0.3}
"""Largest difference of a log-probability that rounding explains, by the less precise dtype of the two sides."""


def check_probe(
    url: str, token_ids: Sequence[int], expected: Sequence[float], tolerance: float, timeout_s: float
) -> float:
    """Compare the server's log-probabilities of a text with the trainer's; the largest difference.

    `token_ids` [tokens]; `expected` [tokens]: log-probability of each token given those before it, the first unused.

    Raises:
        ProbeFailed: they differ by more than `tolerance`. ServerOutage, RequestRefused, MalformedAnswer: no scores.
    """

    async def score() -> list[float]:
        async with ServerClient(url, timeout_s) as client:
            return await client.score(list(token_ids))

    served = run_blocking(score())
    position, difference = largest_difference(served, expected)
    if difference > tolerance:
        raise ProbeFailed(
            f"server {url} and trainer disagree about the same weights: log-probability {served[position]:.6g} against "
            f"{expected[position]:.6g} for token {token_ids[position]} at position {position}, difference "
            f"{difference:.3g}, tolerance {tolerance:g}; the server does not serve what was sent"
        )
    return difference


def largest_difference(served: Sequence[float], expected: Sequence[float]) -> tuple[int, float]:
    """Position and size of the largest difference after the first token; a missing value differs infinitely."""
    if len(served) != len(expected) or len(served) < 2:
        raise ValueError(f"a probe needs two tokens or more, each with a value: got {len(served)} and {len(expected)}")
    differences = [abs(a - b) for a, b in zip(served[1:], expected[1:], strict=True)]
    sizes = [math.inf if math.isnan(difference) else difference for difference in differences]
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    return largest + 1, sizes[largest]
