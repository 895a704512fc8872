"""Which GPU goes to which process."""

import pytest

from agrpo.errors import BadInput
from agrpo.runfile import RunFile, parse
from agrpo.session.placement import Placement, placement, visible_gpus


def run(trainer: dict[str, object] | None = None, servers: dict[str, object] | None = None) -> RunFile:
    sections = {"trainer": trainer or {}, "servers": servers or {}}
    return parse({"name": "x", "model": {"path": "m"}, "data": {"rows": "a:b"}, "rewards": ["a:b"], **sections}, "test")


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def test_the_trainer_gets_the_last_and_the_servers_share_the_others() -> None:
    assert placement(run()) == Placement([3], [[0, 1, 2]])
    assert placement(run({"ranks": 2}, {"count": 2})) == Placement([2, 3], [[0], [1]])


def test_the_run_file_decides_when_it_says_so() -> None:
    assert placement(run({"gpus": [0]}, {"gpus": [2, 3], "count": 2})) == Placement([0], [[2], [3]])


def test_a_machine_without_gpus_has_none_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    assert placement(run({"ranks": 2})) == Placement([], [[]])
    assert not placement(run()).on_gpu


@pytest.mark.parametrize("names", ["GPU-8932f937-d72c", "MIG-1c8a", "0,GPU-8932f937-d72c"])
def test_gpus_that_are_named_otherwise_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    with pytest.raises(BadInput, match=f"CUDA_VISIBLE_DEVICES={names}: expected numbers"):
        placement(run())


@pytest.mark.parametrize(
    ("trainer", "servers", "message"),
    [
        ({"gpus": [7]}, {}, "asks for GPU 7, this machine has"),
        ({"ranks": 4}, {}, r"0 of the GPUs .* are left for servers; use a smaller trainer.ranks, or servers.urls"),
        (
            {},
            {"count": 4},
            r"servers.count: 4, .* 3 of the GPUs .* use a smaller servers.count, or servers.urls",
        ),
        (
            {"gpus": [0]},
            {"gpus": [], "count": 1},
            "0 of the GPUs .* for servers; use servers.urls of",
        ),
        ({"ranks": 2, "gpus": [3]}, {}, "2 ranks need as many GPUs, the trainer has 1"),
    ],
)
def test_what_cannot_be_placed_is_one_line(
    trainer: dict[str, object], servers: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        placement(run(trainer, servers))
