import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agrpo.attention import BACKENDS, Needs, choose, load, tree_flex
from agrpo.attention.tiles import Tile, tiles
from agrpo.attention.tree_varlen import VarlenBackend, VarlenTree
from agrpo.errors import BadInput
from agrpo.trees import TreeLayout, pack
from tests.worlds.forest import Sample, forests, sample

CPU = torch.device("cpu")


def long_layout() -> TreeLayout:
    tokens = np.random.default_rng(0).integers(0, 9, 500).tolist()
    return pack([sample(tokens[:300] + [9 + number] * size) for number, size in enumerate((200, 1, 90))]).layout


def visible(layout: TreeLayout, window: int | None) -> np.ndarray:
    """Who sees whom, bool [tokens, tokens]."""
    query, key = np.indices((layout.num_tokens, layout.num_tokens))
    on_path = (key <= query) & (query < layout.last_reader[key])
    return on_path & (layout.position_ids[query] - layout.position_ids[key] < (window or layout.num_tokens))


def shown(tile: Tile) -> np.ndarray:
    """Who sees whom inside a tile."""
    query, key = np.indices((tile.end_query - tile.first_query, tile.end_key - tile.first_key))
    if tile.band is None:
        return key <= query if tile.own else np.ones_like(query, dtype=bool)
    distance = query - key + tile.band[0]
    return (distance >= 0) & (distance < tile.band[1])


@given(forests(), st.sampled_from([None, 1, 2, 5]), st.sampled_from([None, 1, 3]))
def test_tiles_show_every_visible_pair_once(samples: list[Sample], window: int | None, chunk: int | None) -> None:
    layout = pack(samples).layout
    counts = np.zeros((layout.num_tokens, layout.num_tokens), int)
    own = np.zeros(layout.num_tokens, int)
    for tile in tiles(layout, window, chunk):
        assert shown(tile).any(1).all(), "a query that sees nothing would have no log-sum-exp"
        assert own[tile.first_query : tile.end_query].all() or tile.own, "own tiles come first"
        own[tile.first_query : tile.end_query] += tile.own
        counts[tile.first_query : tile.end_query, tile.first_key : tile.end_key] += shown(tile)
    assert (own == 1).all()
    assert (counts == visible(layout, window)).all()


def attended(layout: TreeLayout, window: int | None, softcap: float | None) -> tuple[list[Tensor], Tensor]:
    """Random query, key, value [1, heads, tokens, size], and what dense attention makes of them."""
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(1, heads, layout.num_tokens, 8, dtype=torch.float64, generator=generator) for heads in (4, 2, 2)
    ]
    query, key, value = parts[0], *(part.repeat_interleave(2, 1) for part in parts[1:])
    scores = query @ key.transpose(-1, -2) * 0.3
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    hidden = ~torch.as_tensor(visible(layout, window))
    return parts, scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def slow_varlen(
    query: Tensor, key: Tensor, value: Tensor, tree: VarlenTree, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """What a variable-length kernel is documented to do: causal, aligned at the last query and key."""
    found = []
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    for number in range(len(tree.cu_queries) - 1):
        rows = slice(*tree.cu_queries[number : number + 2].tolist())
        columns = slice(*tree.cu_keys[number : number + 2].tolist())
        scores = torch.einsum("qhd,khd->hqk", query[rows], key[columns]) * scale
        distance = torch.arange(scores.shape[1])[:, None] - torch.arange(scores.shape[2])
        distance = distance + scores.shape[2] - scores.shape[1]
        hidden = (distance < 0) | (distance >= (window or scores.shape[2]))
        found.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value[columns]))
    assert int(tree.cu_queries.diff().max()) == tree.max_queries and int(tree.cu_keys.diff().max()) == tree.max_keys
    return torch.cat(found)


@pytest.mark.parametrize("window", [None, 3])
@given(samples=forests())
@settings(max_examples=25, deadline=None)
def test_variable_length_kernels_get_every_path(window: int | None, samples: list[Sample]) -> None:
    layout = pack(samples).layout
    parts, expected = attended(layout, window, None)
    backend = VarlenBackend(lambda needs: None, slow_varlen)
    found = backend.attend(*parts, backend.prepare(layout, CPU), 0.3, window, None)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_nothing_is_gathered_when_nothing_is_shared() -> None:
    backend = VarlenBackend(lambda needs: None, slow_varlen)
    assert backend.prepare(pack([sample([1, 2]), sample([3, 4])]).layout, CPU).key_index is None


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (40, None), (None, 2.0)])
def test_flex_masks_show_every_path(window: int | None, softcap: float | None) -> None:
    layout = long_layout()
    parts, expected = attended(layout, window, softcap)
    found = tree_flex.BACKEND.attend(*parts, tree_flex.BACKEND.prepare(layout, CPU), 0.3, window, softcap)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 200])
def test_flex_squares_tell_full_from_partial(window: int | None) -> None:
    layout = long_layout()
    pairs = visible(layout, window)
    full, partial = tree_flex.squares(layout, window)
    for row, column in np.ndindex(full.shape):
        square = pairs[row * 128 : row * 128 + 128, column * 128 : column * 128 + 128]
        assert full[row, column] == (square.shape == (128, 128) and square.all())
        assert square.any() == (full[row, column] or partial[row, column])


def test_the_best_backend_is_chosen_and_the_named_one_is_kept() -> None:
    needs = Needs(CPU, torch.float32)
    assert choose(needs) == "tree_cpu"
    assert choose(needs, "tree_cpu") == "tree_cpu"
    assert load("agrpo.attention.tree_cpu:BACKEND") is load("tree_cpu")


def test_a_backend_that_cannot_serve_says_why() -> None:
    for name in set(BACKENDS) - {"tree_cpu"}:
        with pytest.raises(BadInput, match=f"{name}.*cpu, not on a GPU"):
            choose(Needs(CPU, torch.bfloat16), name)
    with pytest.raises(BadInput, match=r"tree_varlen.*torch.float32"):
        choose(Needs(torch.device("cuda"), torch.float32), "tree_varlen")
    with pytest.raises(BadInput, match=r"tree_aiter.*soft-capping"):
        choose(Needs(torch.device("cuda"), torch.bfloat16, softcap=True), "tree_aiter")
    with pytest.raises(BadInput, match="unknown; use one of tree_flash4"):
        load("flash")
