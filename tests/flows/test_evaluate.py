"""What the evaluation flow refuses before anything is begun."""

from pathlib import Path

import pytest

from agrpo.errors import BadInput
from flows.evaluate import evaluate


def test_a_password_is_no_parameter() -> None:
    with pytest.raises(BadInput, match="leave it to AGRPO_DATABASE_URL") as caught:
        evaluate.fn("r", store="postgresql://me:hidden@database/agrpo")
    assert "hidden" not in str(caught.value)


def test_no_store_is_made_for_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no database"):
        evaluate.fn("r", store=f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []
