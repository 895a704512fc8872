"""Telling an outage, which is worth a retry, from a bug, which would only repeat."""

import errno
import socket
import urllib.error

from agrpo.errors import Outage

# Clients of remote services name their errors alike without sharing a base class with the built-in ones.
_CLIENT_ERRORS = {
    "APIConnectionError",
    "APITimeoutError",
    "ClientConnectionError",
    "ConnectError",
    "ConnectionError",
    "NetworkError",
    "RemoteProtocolError",
    "Timeout",
    "TimeoutException",
}
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH}


def is_outage(error: BaseException) -> bool:
    """Whether something outside this process was away: a connection error or a time-out, whoever raised it.

    A group of errors is an outage when all of them are.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_outage(one) for one in error.exceptions)
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror | Outage):
        return True
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        return is_outage(error.reason)
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return any(kind.__name__ in _CLIENT_ERRORS for kind in type(error).__mro__)
