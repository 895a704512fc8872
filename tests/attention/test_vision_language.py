import torch

from tests.attention.test_exactness import alone, packed
from tests.worlds.forest import VOCAB, sample
from tests.worlds.tiny_vision import tiny_vision


def test_the_text_model_inside_reads_trees() -> None:
    samples = [sample([1, 2, 3, 4, 5, number, 1, number], 5) for number in range(3)]
    model = tiny_vision(VOCAB)
    expected = alone(model, samples)
    assert torch.allclose(packed(model, samples), expected, rtol=0, atol=1e-5)
