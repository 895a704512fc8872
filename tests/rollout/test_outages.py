import socket

import aiohttp
import httpx
import pytest

from agrpo.errors import RequestRefused, ServerOutage
from agrpo.rollout.outages import is_outage


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        socket.gaierror(),
        ServerOutage("away"),
        aiohttp.ServerDisconnectedError(),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
    ],
)
def test_connection_errors_and_time_outs_are_outages_whoever_raises_them(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("Timeout"), FileNotFoundError(), RequestRefused("400")])
def test_everything_else_is_a_bug(error: Exception) -> None:
    assert not is_outage(error)
