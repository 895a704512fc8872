import numpy as np
import pytest
import torch
from torch import Tensor

from agrpo.attention import recurrence
from agrpo.attention.recurrence import Level, Parts, chunked_rule, tree_delta_rule
from agrpo.trees import TreeLayout, pack
from tests.worlds.forest import sample


def token_by_token(parts: Parts, level: Level, states: Tensor) -> tuple[Tensor, Tensor]:
    """The rule as it is defined."""
    out, last = [], []
    for segment, state in enumerate(states):
        for place in range(level.bounds[segment], level.bounds[segment + 1]):
            query, key, value, decay, beta = (part[place] for part in parts)
            state = state * decay.exp()[:, None, None]
            correction = beta[:, None] * (value - torch.einsum("hkv,hk->hv", state, key))
            state = state + torch.einsum("hk,hv->hkv", key, correction)
            out.append(torch.einsum("hkv,hk->hv", state, query))
        last.append(state)
    return torch.stack(out), torch.stack(last)


def random_parts(num_tokens: int) -> Parts:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(num_tokens, *shape, dtype=torch.float64, generator=generator)

    decay, beta = -normal(2).abs() * 0.3, normal(2).sigmoid()
    return tuple(part.requires_grad_() for part in (normal(2, 4), normal(2, 4), normal(2, 3), decay, beta))


def three_levels() -> TreeLayout:
    tokens = np.random.default_rng(0).integers(0, 9, 400)
    forks = [tokens[:150].tolist() + [10 + number] * 70 for number in range(3)]
    forks.append([*forks[0][:200], 30, 31])
    return pack([sample(fork) for fork in forks]).layout


def test_segments_of_equal_depth_run_together() -> None:
    tree = recurrence.prepare(pack([sample([1, 2, 3, 11, 12]), sample([1, 2, 3, 21, 22])]).layout, torch.device("cpu"))
    assert [level.bounds for level in tree.levels] == [(0, 2), (0, 3, 6)]
    assert tree.levels[1].parents.tolist() == [0, 0]
    assert tree.previous.tolist() == [8, 0, 1, 2, 3, 1, 5, 6]


@pytest.mark.parametrize("chunk", [7, 64])
def test_chunks_give_what_single_tokens_give(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "CHUNK", chunk)
    layout = three_levels()
    tree, parts = recurrence.prepare(layout, torch.device("cpu")), random_parts(layout.num_tokens)
    results = [tree_delta_rule(parts, tree, rule) for rule in (chunked_rule, token_by_token)]
    assert torch.allclose(*results, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(result.square().sum(), parts) for result in results]
    for found, expected in zip(*grads, strict=True):
        assert (found - expected).norm() <= 1e-12 * expected.norm()


def test_each_sample_gets_what_it_gets_alone() -> None:
    layout = three_levels()
    parts = random_parts(layout.num_tokens)
    together = tree_delta_rule(parts, recurrence.prepare(layout, torch.device("cpu")))
    for number, fork in enumerate(layout.forks):
        path = torch.as_tensor(layout.locate(number, np.arange(fork.num_tokens)))
        line = recurrence.prepare(pack([sample(list(range(fork.num_tokens)))]).layout, torch.device("cpu"))
        alone = tree_delta_rule(tuple(part[path] for part in parts), line, token_by_token)
        assert torch.allclose(together[path], alone, rtol=0, atol=1e-12)
