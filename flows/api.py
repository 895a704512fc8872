"""A Prefect server that runs already: what deployments and automations live in."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.settings import PREFECT_API_URL

from agrpo.errors import BadInput, Outage


@contextmanager
def configured_api() -> Iterator[None]:
    """Needs an API that outlives this command. Raises BadInput when none is configured, Outage when it is away."""
    url = PREFECT_API_URL.value()
    if not url:
        raise BadInput(
            "no Prefect server is configured; start one with agrpo ui, "
            "then: export PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    try:
        yield
    except httpx.TransportError as error:
        raise Outage(f"Prefect's server at {url} does not answer ({error}); start it: agrpo ui") from error
