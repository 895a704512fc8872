"""What `agrpo deploy` makes by itself, and what it leaves to a person."""

import pytest

from agrpo.errors import BadInput
from flows.deploy import make_pool


def test_a_pool_of_another_name_is_not_made_as_the_wrong_kind() -> None:
    with pytest.raises(BadInput, match=r"'agrpo-docker', which is not there.*prefect work-pool create agrpo-docker"):
        make_pool("agrpo-docker")
