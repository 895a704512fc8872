"""A Prefect server that runs already: what deployments and automations live in."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from agrpo.doctor.places import hide_password
from agrpo.errors import AgrpoError, BadInput, Outage
from tasks.timeline import SAYS_NO

_MAY_NOT = (401, 403)


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
    except SAYS_NO as error:
        raise trouble(error) from error


def require_api() -> None:
    """Ask the configured API first, as Prefect itself gives up with a traceback. Raises what `trouble` gives."""
    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
        if error is not None:
            raise trouble(error) from error
        try:
            client.read_flows(limit=1)  # its health it tells everybody
        except SAYS_NO as refused:
            raise trouble(refused) from refused


def trouble(error: Exception) -> AgrpoError:
    """What Prefect's server did to us, in one line: BadInput when we may not ask it, else Outage."""
    if not PREFECT_API_URL.value():
        return Outage(f"the Prefect server of this command alone does not answer ({error}); try again")
    where = f"Prefect's server at {hide_password(str(PREFECT_API_URL.value()))}"
    if not isinstance(error, PrefectHTTPStatusError):
        return Outage(
            f"{where} does not answer ({error}); start it with agrpo ui, or mend PREFECT_API_URL: "
            "agrpo train needs none and goes without when it is unset"
        )
    status = error.response.status_code
    if status in _MAY_NOT:
        return BadInput(
            f"{where} refuses us ({status}); set PREFECT_API_AUTH_STRING to the name:password it was started with "
            "(Prefect Cloud: PREFECT_API_KEY)"
        )
    return Outage(f"{where} answers {status} to {error.request.url.path}; read its log, then try again")
