"""The probe against a scripted server (fault 19)."""

import math

import pytest

from agrpo.errors import ProbeFailed
from agrpo.weights.probe import TOLERANCES, check_probe, largest_difference
from tests.worlds.scripted_vllm import scripted_vllm

TOKENS = [4, 5, 6]
EXPECTED = [math.nan, -0.5, -1.5]


def served(second: float | None, third: float | None) -> object:
    return {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": second}}, {"6": {"logprob": third}}]}]}


def test_agreement_gives_the_largest_difference() -> None:
    with scripted_vllm() as server:
        server.script["/v1/completions"] = (200, served(-0.504, -1.501))
        assert check_probe(server.url, TOKENS, EXPECTED, TOLERANCES["float32"], 5.0) == pytest.approx(0.004)


@pytest.mark.parametrize("third", [-1.6, -9999.0, None])
def test_disagreement_names_the_numbers_and_the_place(third: float | None) -> None:
    with scripted_vllm() as server:
        server.script["/v1/completions"] = (200, served(-0.5, third))
        with pytest.raises(ProbeFailed) as failed:
            check_probe(server.url, TOKENS, EXPECTED, 0.01, 5.0)
        message = str(failed.value)
    for part in (server.url, "token 6", "position 2", "tolerance 0.01", "-1.5"):
        assert part in message
    assert ("difference 0.1" in message) == (third == -1.6)


def test_a_probe_must_have_a_value_for_every_token() -> None:
    with pytest.raises(ValueError, match="two tokens or more"):
        largest_difference([math.nan, -1.0], [math.nan])
