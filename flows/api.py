"""A Prefect server that runs already: what deployments and automations live in."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from agrpo.doctor.places import hide_password
from agrpo.errors import BadInput, Outage


@contextmanager
def configured_api() -> Iterator[None]:
    """Needs an API that outlives this command. Raises BadInput when none is configured, Outage when it is away."""
    if not PREFECT_API_URL.value():
        raise BadInput(
            "no Prefect server is configured; start one with agrpo ui, "
            "then: export PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    require_api()
    try:
        yield
    except httpx.TransportError as error:
        raise _away(error) from error


def require_api() -> None:
    """Ask the configured API for its health first: Prefect itself gives up with a traceback. Raises Outage."""
    error = get_client(sync_client=True).api_healthcheck()
    if error is not None:
        raise _away(error) from error


def _away(error: Exception) -> Outage:
    url = hide_password(str(PREFECT_API_URL.value()))
    return Outage(
        f"Prefect's server at {url} does not answer ({error}); start it with agrpo ui, or mend PREFECT_API_URL: "
        "agrpo train needs none and goes without when it is unset"
    )
