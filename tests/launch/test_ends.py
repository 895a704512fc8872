"""Which error a run ends with when one of its processes cannot use what the user gave."""

from pathlib import Path

import pytest

from agrpo.errors import BadInput
from agrpo.launch import exits
from agrpo.launch.child import ChildSpec
from agrpo.launch.launcher import Launcher
from agrpo.store import Attempt, Store, events, processes
from tests.worlds.processes import eventually, wait_for


def shell(script: str, url: str | None = None) -> ChildSpec:
    """A child that runs a script."""
    kind = "server" if url else "worker"
    return ChildSpec(kind, 0, ("bash", "-c", script), Path(f"{kind}.log"), url=url, backoff_s=0.01)  # type: ignore[arg-type]


def test_what_a_child_refuses_is_the_run_s_one_line(launcher: Launcher, store: Store) -> None:
    words = "reward function 'mine' returned nan for completion 0"
    launcher.start(shell(f'echo loading; echo "{exits.REFUSAL}{words}"; exit {exits.BAD_INPUT}'))
    with pytest.raises(BadInput) as caught:
        wait_for(launcher, "worker", within_s=20)
    assert str(caught.value) == f"worker 0: {words}"
    assert len(processes.all(store, "r1")) == 1


def test_a_run_goes_on_without_an_optional_child_and_says_why(launcher: Launcher, store: Store) -> None:
    command = ("bash", "-c", f'echo "{exits.REFUSAL}no such prompts"; exit {exits.BAD_INPUT}')
    launcher.start(ChildSpec("evaluator", 0, command, Path("evaluator.log"), optional=True))
    eventually(lambda: launcher.children()[0].state == "failed")
    launcher.raise_if_failed()
    told = [event.message for event in events.events(store, "r1") if event.kind == "given_up"]
    assert told == ["the run goes on without evaluator 0: evaluator 0: no such prompts"]


def test_a_server_that_dies_before_it_answers_is_tried_once_more(attempt: Attempt, tmp_path: Path) -> None:
    script = "echo 'error: unrecognized arguments: --max-modle-len'; exit 1"
    with Launcher(attempt, tmp_path, healthy=lambda url: False) as launcher:
        launcher.start(shell(script, url="http://127.0.0.1:1"))
        with pytest.raises(BadInput, match=r"(?s)before it ever answered; mend what.*unrecognized arguments"):
            launcher.wait_healthy(0, timeout_s=20)
    assert len(processes.all(attempt.store, "r1")) == 2
