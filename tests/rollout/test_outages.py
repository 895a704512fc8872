import errno
import socket
import urllib.error
from email.message import Message

import aiohttp
import httpx
import pytest

from agrpo.errors import RequestRefused, ServerOutage
from agrpo.rollout.outages import is_outage
from agrpo.rollout.retries import is_passing


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
        urllib.error.URLError(ConnectionRefusedError()),
        urllib.error.URLError(socket.gaierror()),
        OSError(errno.ENETUNREACH, "unreachable"),
        OSError(errno.EHOSTUNREACH, "no route"),
        ExceptionGroup("two judges", [TimeoutError(), ExceptionGroup("", [ServerOutage("away")])]),
    ],
)
def test_connection_errors_and_time_outs_are_outages_whoever_raises_them(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        ValueError("Timeout"),
        FileNotFoundError(),
        RequestRefused("400"),
        ExceptionGroup("a judge and a bug", [TimeoutError(), KeyError("x")]),
        urllib.error.URLError("unknown url type: htp"),
        urllib.error.HTTPError("http://judge", 404, "not found", Message(), None),
    ],
)
def test_everything_else_is_a_bug(error: Exception) -> None:
    assert not is_outage(error)


def test_servers_that_are_gone_for_good_do_not_come_back_in_a_group_of_errors() -> None:
    assert is_passing(ExceptionGroup("", [TimeoutError()]))
    assert not is_passing(ExceptionGroup("", [TimeoutError(), ServerOutage("1800 s")]))
