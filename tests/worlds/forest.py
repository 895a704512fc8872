"""Samples that share prefixes in every way that training meets."""

import numpy as np
from hypothesis import strategies as st

VOCAB = 7

Sample = tuple[np.ndarray, np.ndarray]
"""token_ids [tokens] and trained [tokens]."""


def sample(token_ids: list[int], first_trained: int = 1) -> Sample:
    """A sample trained from one token on."""
    tokens = np.array(token_ids, dtype=np.int32)
    return tokens, np.arange(len(tokens)) >= max(first_trained, 1)


_tokens = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@st.composite
def _group(draw: st.DrawFn, system: list[int]) -> list[Sample]:
    prompt = system + draw(_tokens)
    found = []
    for _ in range(draw(st.integers(1, 4))):
        conversation = list(prompt)
        for _ in range(draw(st.integers(1, 3))):
            answer = draw(_tokens)
            found.append((conversation + answer, len(conversation)))
            # A later turn may extend the conversation, or fork when its tokens are rendered anew.
            conversation = conversation + answer[: draw(st.integers(0, len(answer)))] + draw(_tokens)
    return [sample(tokens or [0], first) for tokens, first in found]


@st.composite
def forests(draw: st.DrawFn) -> list[Sample]:
    """Groups with a common system prompt, multi-turn chains, repeats, prefixes, one-token and empty completions."""
    system = draw(_tokens)
    samples = [one for _ in range(draw(st.integers(1, 3))) for one in draw(_group(system))]
    repeats = draw(st.lists(st.integers(0, len(samples) - 1), max_size=2))
    cuts = draw(st.lists(st.tuples(st.integers(0, len(samples) - 1), st.integers(1, 9)), max_size=2))
    samples += [samples[index] for index in repeats]
    samples += [sample(samples[index][0][:size].tolist(), draw(st.integers(1, size))) for index, size in cuts]
    return [samples[index] for index in draw(st.permutations(range(len(samples))))]
