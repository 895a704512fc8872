"""Where weight files lie and what is in them."""

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file

from agrpo.weights import file_transport
from agrpo.weights.file_transport import FileTransport, choose_folder, distinct, remove_weights, weights_folders

LOCAL = ["http://127.0.0.1:1", "http://localhost:2"]


def test_tied_names_are_sent_once_and_freed_memory_is_not_taken_for_a_tie() -> None:
    embedding = torch.ones(3, 2)
    tied = [("embed", embedding), ("norm", torch.ones(2)), ("head", embedding)]
    assert list(distinct(tied)) == ["embed", "norm"]
    gathered = ((f"layer.{i}", torch.full((64, 64), float(i))) for i in range(50))
    found = distinct(gathered)
    assert len(found) == 50 and found["layer.49"][0, 0] == 49


def test_views_and_gradients_are_written_as_plain_tensors(tmp_path: Path) -> None:
    transport = FileTransport(tmp_path, 1.0)
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    transport.prepare([("w", weight), ("t", weight.T)], 1, ["http://elsewhere:1"])
    path = tmp_path / "weights-0-1.safetensors"
    assert torch.equal(load_file(path)["t"], weight.T)
    assert transport._message == {"path": str(path), "digest": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_shared_memory_only_for_servers_of_this_host_and_with_room(tmp_path: Path) -> None:
    plain, shared = weights_folders(tmp_path / "weights")
    assert choose_folder(plain, LOCAL, 1000) == shared
    assert choose_folder(plain, [*LOCAL, "http://10.0.0.7:1"], 1000) == plain
    assert choose_folder(plain, LOCAL, 1 << 60) == plain
    shared.rmdir()


def test_a_folder_that_somebody_else_put_into_shared_memory_is_not_used(tmp_path: Path) -> None:
    plain, shared = weights_folders(tmp_path / "weights")
    shared.symlink_to(tmp_path)
    try:
        assert choose_folder(plain, LOCAL, 1000) == plain
    finally:
        shared.unlink()


def test_leftovers_of_killed_attempts_are_removed_but_not_files_of_a_later_one(tmp_path: Path) -> None:
    for folder in weights_folders(tmp_path / "weights"):
        folder.mkdir(parents=True)
        for name in ("weights-1-7.safetensors", "weights-2-8.unfinished", "weights-3-8.safetensors", "notes.txt"):
            (folder / name).touch()
    remove_weights(tmp_path / "weights", token=2)
    for folder in weights_folders(tmp_path / "weights"):
        left = sorted(folder.iterdir())
        assert [path.name for path in left] == ["notes.txt", "weights-3-8.safetensors"]
        for path in left:
            path.unlink()
    weights_folders(tmp_path / "weights")[1].rmdir()


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    assert weights_folders(tmp_path / "a")[1] != weights_folders(tmp_path / "b")[1]
    assert weights_folders(tmp_path / "a")[1].parent == file_transport.SHARED_MEMORY
