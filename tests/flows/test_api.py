"""A Prefect server that answers, but not as one would like."""

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from agrpo.errors import BadInput, Outage
from flows.api import configured_api, require_api, trouble
from tests.worlds.prefect_answers import prefect_answering


def test_a_server_that_lets_us_in_is_used() -> None:
    with prefect_answering(500, "/flows/filter") as url, temporary_settings({PREFECT_API_URL: url}):
        require_api()


def test_a_wrong_auth_string_is_found_before_anything_is_done() -> None:
    """Prefect tells everybody that it is healthy."""
    refusal = r"refuses us \(401\); set PREFECT_API_AUTH_STRING"
    with (
        prefect_answering(401) as url,
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(BadInput, match=refusal),
        configured_api(),
    ):
        raise AssertionError("not reached")


def test_an_error_of_the_server_is_an_outage_that_names_what_was_asked() -> None:
    with (
        prefect_answering(500, "/flows/filter") as url,
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(Outage, match="answers 500 to /api/work_pools/filter"),
        configured_api(),
        get_client(sync_client=True) as client,
    ):
        client.read_work_pools()


def test_a_server_of_this_command_alone_is_nothing_to_be_configured() -> None:
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        said = str(trouble(httpx.ConnectError("refused")))
    assert said == "the Prefect server of this command alone does not answer (refused); try again"
