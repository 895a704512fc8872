"""The commands that a run file becomes."""

from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from agrpo.runfile import RunFile, parse
from agrpo.session import specs
from agrpo.session.placement import Placement
from agrpo.store import Attempt, Store

CPU = Placement([], [[], []])


def run(**sections: object) -> RunFile:
    return parse({"name": "x", "model": {"path": "m"}, "data": {"rows": "a:b"}, "rewards": ["a:b"], **sections}, "test")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(Store.open(f"sqlite:///{tmp_path}/agrpo.db"), "x", 3)


def test_every_child_knows_who_it_is(attempt: Attempt) -> None:
    for spec in (specs.worker(run(), attempt, 1), specs.trainer(run(), attempt, CPU)):
        identity = ("--store", attempt.store.url, "--run", "x", "--token", "3", "--process-id", "{process_id}")
        assert spec.command[-len(identity) :] == identity  # type: ignore[index]
        assert spec.log_path == Path("logs") / f"{spec.kind}-{spec.index}.log"
        assert spec.orphan_grace_s == 0


def test_ranks_decide_who_starts_the_trainer(attempt: Attempt) -> None:
    def launched_by(ranks: int, placement: Placement) -> str:
        return str(specs.trainer(run(trainer={"ranks": ranks}), attempt, placement).command[2])  # type: ignore[index]

    assert launched_by(1, CPU) == "agrpo.trainer.main"
    assert launched_by(2, CPU) == "torch.distributed.run"
    assert launched_by(2, Placement([2, 3], [[0]])) == "accelerate.commands.launch"


def test_torchrun_leaves_the_trainers_own_options_alone(attempt: Attempt) -> None:
    command = specs.trainer(run(trainer={"ranks": 2}), attempt, CPU).command
    assert not callable(command)
    understood = get_args_parser().parse_args(command[3:])
    assert (understood.module, understood.training_script) == (True, "agrpo.trainer.main")
    assert understood.training_script_args == list(command[-8:])


def test_a_worker_never_sees_a_gpu(attempt: Attempt) -> None:
    assert specs.worker(run(), attempt, 0).env["CUDA_VISIBLE_DEVICES"] == ""
    assert specs.trainer(run(), attempt, Placement([3], [[0]])).env["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_server_outlives_the_launcher_and_is_known_by_its_settings() -> None:
    first, again = (specs.server(run(servers={"count": 2}), 0, CPU) for _ in range(2))
    assert first.orphan_grace_s == 120
    assert first.url is not None and first.url.startswith("http://127.0.0.1:")
    assert first.settings_hash == again.settings_hash  # another port is the same server
    others = [specs.server(run(servers={"count": 2}), 1, CPU), specs.server(run(servers={"max_model_len": 99}), 0, CPU)]
    assert first.settings_hash not in [other.settings_hash for other in others]


def test_only_a_worker_has_a_standby_and_only_where_it_is_wanted(attempt: Attempt) -> None:
    wanted = run(limits={"standby": True})
    assert specs.worker(wanted, attempt, 0).standby_after_s == specs.STANDBY_AFTER_S
    assert specs.worker(run(), attempt, 0).standby_after_s is None
    assert specs.trainer(wanted, attempt, CPU).standby_after_s is None


def test_threads_reach_the_environment(attempt: Attempt) -> None:
    chosen = run(trainer={"threads": 2}, servers={"threads": 1})
    assert specs.trainer(chosen, attempt, CPU).env["OMP_NUM_THREADS"] == "2"
    assert specs.server(chosen, 0, CPU).env["OMP_NUM_THREADS"] == "1"


def test_a_server_serves_what_the_trainer_asks_of_the_model() -> None:
    plain = specs.server(run(), 0, CPU).command
    assert "--trust-remote-code" not in plain and "--revision" not in plain
    assert plain[plain.index("--max-logprobs") + 1] == "20"  # type: ignore[operator, index, union-attr]
    wants = {"num_sampler_logprobs": 32, "trust_remote_code": True, "model_init_kwargs": {"revision": "v2"}}
    asked = specs.server(run(trainer=wants), 0, CPU).command
    assert "--trust-remote-code" in asked
    assert asked[asked.index("--max-logprobs") + 1] == "33"  # type: ignore[operator, index, union-attr]
    assert asked[asked.index("--revision") + 1] == "v2"  # type: ignore[operator, index, union-attr]
