"""Each check says what it saw and, when that is bad, what to do."""

import socket
from pathlib import Path

import pytest

from agrpo.doctor.machine import check_gpus, check_port, check_server, check_shared_memory, is_taken


def test_a_taken_port_is_a_warning_with_a_way_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        found = check_port(port)
    assert (found.level, str(port) in found.says) == ("warning", True)
    assert "agrpo ui --port" in found.do


def test_gpus_need_a_torch_that_was_built_for_them() -> None:
    assert check_gpus([], "2.13.0+cpu").level == "ok"
    assert check_gpus([0, 1], "2.13.0").level == "ok"
    assert check_gpus([0, 1], "2.13.0+cpu").level == "problem"
    assert check_gpus([0, 1], None).says == "2 GPUs, but no torch"


def test_a_server_that_does_not_answer_is_a_problem() -> None:
    found = check_server("http://127.0.0.1:1")
    assert (found.level, "servers.urls" in found.do) == ("problem", True)


def test_missing_shared_memory_is_said(tmp_path: Path) -> None:
    assert check_shared_memory(tmp_path / "absent").level == "warning"


def test_a_port_is_taken_by_a_listener_and_not_by_what_it_left_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert is_taken("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            listener.accept()[0].close()  # the server's side ends first, and its port stays in TIME_WAIT
            assert client.recv(1) == b""
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))
    assert not is_taken("127.0.0.1", port)
