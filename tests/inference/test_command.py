"""The command that starts a server."""

import itertools
import json
import os
import socket
from pathlib import Path

from agrpo.inference.command import ServerCommand, free_port, server_command


def options(argv: list[str]) -> dict[str, str]:
    return {name: value for name, value in itertools.pairwise(argv) if name.startswith("--")}


def test_a_cpu_server_reads_weights_from_files_and_binds_to_loopback(tmp_path: Path) -> None:
    folders = (tmp_path / "a", tmp_path / "b")
    settings = ServerCommand("model", 8123, max_model_len=512, threads=3, weights_folders=folders, seed=5)
    argv, env = server_command(settings)
    said = options(argv)
    assert argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert json.loads(said["--weight-transfer-config"]) == {"backend": "agrpo_file"}
    assert (said["--host"], said["--port"], said["--max-model-len"]) == ("127.0.0.1", "8123", "512")
    assert (said["--seed"], said["--logprobs-mode"], said["--dtype"]) == ("5", "processed_logprobs", "float32")
    assert {"--enable-scale-out", "--enforce-eager", "--disable-uvicorn-access-log"} <= set(argv)
    assert env["AGRPO_WEIGHTS_DIR"] == os.pathsep.join(map(str, folders))
    assert env["VLLM_SERVER_DEV_MODE"] == "1" and env["OMP_NUM_THREADS"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_a_gpu_server_uses_nccl_and_its_own_gpus() -> None:
    settings = ServerCommand("model", 1, device="cuda", gpus=(2, 3), sampling_masks=True, args=("--seed", "9"))
    argv, env = server_command(settings)
    said = options(argv)
    assert json.loads(said["--weight-transfer-config"]) == {"backend": "nccl"}
    assert (said["--tensor-parallel-size"], said["--api-server-count"]) == ("2", "8")
    assert "--return-sampling-mask" in argv and "--enforce-eager" not in argv
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3" and env["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert argv[-2:] == ["--seed", "9"]


def test_a_local_model_needs_no_network(tmp_path: Path) -> None:
    assert server_command(ServerCommand(str(tmp_path), 1))[1]["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in server_command(ServerCommand("org/model", 1))[1]


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
