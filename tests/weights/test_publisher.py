"""Publishing against scripted servers that fail in each phase (fault 7)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agrpo.inference.command import ServerCommand, server_command
from agrpo.weights.file_transport import weights_folders
from agrpo.weights.publisher import Publisher, SyncReport, drivable_backends, load_transport
from tests.worlds.scripted_vllm import HANG, Answer, ScriptedVllm, scripted_vllm, served_version

TENSORS = [("a.weight", torch.arange(6.0).reshape(2, 3)), ("b.weight", torch.ones(4))]
PATHS = {
    "pause": "/pause",
    "start": "/start_weight_update",
    "update": "/update_weights",
    "finish": "/finish_weight_update",
    "confirm": "/weight_info",
    "resume": "/resume",
}
FAILURES: dict[str, Answer] = {
    "error": (500, {"error": {"message": "engine says no"}}),
    "refusal": (400, {"error": {"message": "engine says no"}}),
    "hang": HANG,
    "garbage": (200, "<html>proxy</html>"),
}


@pytest.fixture
def server() -> Iterator[ScriptedVllm]:
    with scripted_vllm() as scripted:
        yield scripted


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "weights", timeout_s=0.4)


def publish(publisher: Publisher, version: int, *servers: ScriptedVllm) -> SyncReport:
    return publisher.publish(TENSORS, version, [server.url for server in servers])


def files(tmp_path: Path) -> list[Path]:
    return [path for folder in weights_folders(tmp_path / "weights") for path in folder.glob("*")]


def test_the_phases_come_in_order_and_the_version_is_confirmed(server: ScriptedVllm, publisher: Publisher) -> None:
    report = publish(publisher, 3, server)
    assert report.confirmed == [server.url] and report.failed == {}
    assert server.paths() == [
        "/pause",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/weight_info",
        "/resume",
    ]
    assert server.version == "3" and served_version(server.url) == "3"
    assert set(report.times) == {"pause", "barrier", "transfer"} and min(report.times.values()) >= 0


def test_every_server_reads_the_same_file_which_is_gone_afterwards(tmp_path: Path, publisher: Publisher) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def read(body: dict[str, dict[str, str]]) -> Answer:
        seen.append(load_file(body["update_info"]["path"]))
        return 200, {}

    with scripted_vllm() as first, scripted_vllm() as second:
        first.script["/update_weights"] = second.script["/update_weights"] = read
        report = publish(publisher, 1, first, second)
        assert sorted(report.confirmed) == sorted([first.url, second.url])
    assert len(seen) == 2
    for tensors in seen:
        assert tensors.keys() == {"a.weight", "b.weight"} and torch.equal(tensors["a.weight"], TENSORS[0][1])
    assert files(tmp_path) == []


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("phase", PATHS)
def test_a_failing_phase_is_named_within_its_limit_and_a_retry_sends_everything_again(
    server: ScriptedVllm, publisher: Publisher, tmp_path: Path, phase: str, failure: str
) -> None:
    publish(publisher, 1, server)
    server.asked.clear()
    server.script[PATHS[phase]] = FAILURES[failure]
    begun = time.monotonic()
    report = publish(publisher, 2, server)
    assert time.monotonic() - begun < 3
    assert report.confirmed == []
    error = report.failed[server.url]
    assert error.phase == phase and server.url in str(error) and "\n" not in str(error)
    assert server.paths()[-1] == "/resume"
    assert server.paused == (phase == "resume")
    assert server.version != "2"
    assert files(tmp_path) == []

    server.script.clear()
    server.asked.clear()
    assert publish(publisher, 2, server).confirmed == [server.url]
    assert server.paths()[:3] == ["/pause", "/start_weight_update", "/update_weights"]
    assert server.version == "2" and not server.paused


@pytest.mark.parametrize(("phase", "label"), [("pause", "1"), ("start", "1"), ("update", "unknown")])
def test_after_a_half_way_failure_nobody_claims_to_know_the_weights(
    server: ScriptedVllm, publisher: Publisher, phase: str, label: str
) -> None:
    publish(publisher, 1, server)
    server.script[PATHS[phase]] = FAILURES["error"]
    publish(publisher, 2, server)
    assert served_version(server.url) == label


def test_a_server_that_serves_another_version_is_not_confirmed(server: ScriptedVllm, publisher: Publisher) -> None:
    server.script["/finish_weight_update"] = (200, {"message": "finished"})
    error = publish(publisher, 2, server).failed[server.url]
    assert error.phase == "confirm" and "'default'" in str(error) and "expected '2'" in str(error)


def test_one_failing_server_does_not_hold_back_the_other(publisher: Publisher) -> None:
    with scripted_vllm() as good, scripted_vllm() as bad:
        bad.script["/update_weights"] = HANG
        report = publish(publisher, 1, good, bad)
        assert report.confirmed == [good.url] and list(report.failed) == [bad.url]


def test_an_update_that_a_dead_trainer_left_open_is_closed_first(server: ScriptedVllm, publisher: Publisher) -> None:
    left_open = True

    def start(body: object) -> Answer:
        return (500, {"error": {"message": "called while an update is already active"}}) if left_open else (200, {})

    def update(body: dict[str, object]) -> Answer:
        nonlocal left_open
        left_open = False
        return (200, {}) if body["update_info"] else (500, {"error": {"message": "invalid update_info"}})

    server.script |= {"/start_weight_update": start, "/update_weights": update}
    assert publish(publisher, 1, server).confirmed == [server.url]


def test_a_server_without_a_cache_endpoint_has_cleared_it_at_the_pause(
    server: ScriptedVllm, publisher: Publisher
) -> None:
    server.script["/reset_prefix_cache"] = (404, "")
    assert publish(publisher, 1, server).confirmed == [server.url]
    server.script["/reset_prefix_cache"] = (500, {"error": {"message": "blocks in use"}})
    assert publish(publisher, 2, server).failed[server.url].phase == "finish"


def test_a_server_that_is_away_has_no_version(publisher: Publisher) -> None:
    with scripted_vllm() as gone:
        url = gone.url
    assert served_version(url) is None
    assert publisher.publish(TENSORS, 1, [url]).failed[url].phase == "pause"


def test_a_gpu_trainer_drives_what_its_own_servers_are_started_with(tmp_path: Path) -> None:
    for device, on_gpu in (("cpu", False), ("cuda", True)):
        command, _ = server_command(ServerCommand(model="m", port=1, device=device))
        started = json.loads(command[command.index("--weight-transfer-config") + 1])["backend"]
        assert drivable_backends(on_gpu)[0] == started
        assert load_transport(started, tmp_path, 1.0)
